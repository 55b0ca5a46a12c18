export const DashboardsPage = () => null;
