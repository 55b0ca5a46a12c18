export const PlaygroundPage = () => null;
