export const DeploymentsPage = () => null;
