// Icons, drawn in a square of 20.
import { html } from "../lib.js";

const PATHS = {
  locks: "M5.5 9V6.500a4.5 4.5 0 0 1 9 0V9M4.5 9h11v8h-11zM10 12v2.5",
  activity: "M3 11h3l2.5-6 3.5 10 2-4h3",
  projects: "M3 5.500h5l1.5 2H17v8.500H3z",
  audit: "M5 3h10v14H5zM8 7h4M8 10h4M8 13h2.5",
  nodes: "M4 4h12v4.500H4zM4 11.500h12V16H4zM7 6.250h.01M7 13.750h.01",
  light:
    "M10 6.500a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.300l1.4 1.400M14.3 14.300l1.4 1.400M4.3 15.700l1.4-1.400M14.3 5.700l1.4-1.4",
  dark: "M16.5 12A7 7 0 0 1 8 3.500a7 7 0 1 0 8.5 8.500z",
  out: "M8 4H4v12h4M12 6.5 15.5 10 12 13.500M7.5 10h8",
};

/** @param {{ name: keyof typeof PATHS }} props */
export const Icon = ({ name }) =>
  html`<svg class="icon" viewBox="0 0 20 20" width="20" height="20" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

export const Mark = () =>
  html`<svg class="mark" viewBox="0 0 32 32" width="28" height="28" aria-hidden="true">
    <path class="mark-body" d="M11.2 8.500h9.600a2 2 0 0 1 1.8 1.100l7 15A3 3 0 0 1 26.9 29H5.100a3 3 0 0 1-2.7-4.400l7-15a2 2 0 0 1 1.8-1.100z" />
    <path class="mark-shackle" d="M12 3.500a4 4 0 0 1 8 0V9h-2.600V4.500a1.4 1.4 0 0 0-2.8 0V9H12z" />
    <path class="mark-hole" d="M16 15.400a2.6 2.6 0 0 1 1.3 4.850l.7 3.750h-4l.700-3.750A2.6 2.6 0 0 1 16 15.400z" />
  </svg>`;
