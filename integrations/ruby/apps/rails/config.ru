# Rails finds its root by this file.
