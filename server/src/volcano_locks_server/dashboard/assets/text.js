// Text that other people wrote, as it is shown: no character of it is invisible or changes the direction of the text.

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/** The text with escapes such as \u200b in place of such characters. @param {string} text */
export const visible = (text) => text.replace(INVISIBLE, escaped);

/** A reason in quotation marks. @param {string} reason */
export const quoted = (reason) => `“${visible(reason)}”`;

/** @param {string} character */
function escaped(character) {
  const hex = /** @type {number} */ (character.codePointAt(0)).toString(16);
  return hex.length > 4 ? `\\u{${hex}}` : `\\u${hex.padStart(4, "0")}`;
}
