/**
 * Makes `instanceof` work between two copies of this package in one program, such as its ESM and its CommonJS build.
 *
 * A branded class recognises its instances by a registered symbol on their prototypes, which every copy shares. A
 * program's own subclass has no brand: it recognises only its own instances, as any class does.
 */

import { readProperty } from "./unknown_values.ts";

type Class = abstract new (...args: never[]) => object;

const BRANDS: WeakMap<object, symbol> = new WeakMap();

/** Brands `type` with `name`, the name of the class in every copy of this package. */
export function brandClass(type: Class, name: string): void {
  const symbol = Symbol.for(`volcano-locks.${name}`);
  BRANDS.set(type, symbol);
  Object.defineProperty(type.prototype, symbol, { value: true });
  // A static method of the class would change how TypeScript narrows on `instanceof`.
  Object.defineProperty(type, Symbol.hasInstance, { value: hasInstance, configurable: true });
}

/** `value instanceof this`; subclasses inherit it. */
function hasInstance(this: Class, value: unknown): boolean {
  const symbol = BRANDS.get(this);
  if (symbol === undefined) return Function.prototype[Symbol.hasInstance].call(this, value);
  return readProperty(value, symbol) === true;
}
