/**
 * Makes `instanceof` work between two copies of this package in one program, such as its ESM and its CommonJS build.
 *
 * A branded class recognises instances by a registered symbol on their prototypes, which is the same in every copy. A
 * program's own subclass of it has no brand and recognises its own instances alone, as any class does.
 */

type Class = abstract new (...args: never[]) => object;

const BRANDS: WeakMap<object, symbol> = new WeakMap();

/** Gives `type` the brand `name`, which is its name in every copy of this package. */
export function brand(type: Class, name: string): void {
  const symbol = Symbol.for(`volcano-locks.${name}`);
  BRANDS.set(type, symbol);
  Object.defineProperty(type.prototype, symbol, { value: true });
  // Not a method of the class: TypeScript would take it for the types that `instanceof` narrows to.
  Object.defineProperty(type, Symbol.hasInstance, { value: hasInstance, configurable: true });
}

/** `value instanceof this`; subclasses inherit it. */
function hasInstance(this: Class, value: unknown): boolean {
  const symbol = BRANDS.get(this);
  if (symbol === undefined) return Function.prototype[Symbol.hasInstance].call(this, value);
  return typeof value === "object" && value !== null && symbol in value;
}
