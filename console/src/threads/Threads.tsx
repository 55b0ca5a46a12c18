export const ThreadsPage = () => null;
