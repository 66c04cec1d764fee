/** The package's version, as package.json says it. */
export const VERSION = "0.1.0";
