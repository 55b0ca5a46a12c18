export const HomePage = () => null;
