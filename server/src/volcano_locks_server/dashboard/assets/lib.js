// The parts of the vendored packages that the dashboard uses, and `html` for templates.
import { batch, computed, effect, signal } from "@preact/signals";
import htm from "htm";
import { h, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

export const html = htm.bind(h);
export { batch, computed, effect, render, signal, useEffect, useLayoutEffect, useMemo, useRef, useState };
