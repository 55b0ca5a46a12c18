export const ExportsPage = () => null;
