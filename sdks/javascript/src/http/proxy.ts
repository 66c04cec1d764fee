/**
 * Finds the proxy of the usual environment variables: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, also in lower
 * case. Loopback addresses are never proxied (case 56).
 */

import { BlockList, isIP } from "node:net";

export type Environment = Readonly<Record<string, string | undefined>>;

/** A proxy: its address, the variable that names it, and its credentials as header fields. */
export interface HttpProxy {
  readonly url: URL;
  readonly variable: string;
  readonly headers: Readonly<Record<string, string>>;
}

const LOOPBACK = "localhost, 127.0.0.0/8, ::1";

/** The proxy for `target`, or null. Throws a `RangeError` if the variable is not the URL of an HTTP proxy. */
export function findProxy(target: URL, environment: Environment): HttpProxy | null {
  const scheme = target.protocol.slice(0, -1);
  // A CGI program gets the header field `Proxy` of its own caller as HTTP_PROXY.
  const upper = scheme === "http" && environment.REQUEST_METHOD !== undefined ? [] : [`${scheme.toUpperCase()}_PROXY`];
  const names = [`${scheme}_proxy`, ...upper, "all_proxy", "ALL_PROXY"];
  const variable = names.find((name) => environment[name]);
  const excluded = environment.no_proxy || environment.NO_PROXY || "";
  if (variable === undefined || isListed(target, LOOPBACK) || isListed(target, excluded)) return null;
  const text = environment[variable] ?? "";
  try {
    const url = new URL(text.includes("://") ? text : `http://${text}`);
    if (/^https?:$/.test(url.protocol)) return { url, variable, headers: authorization(url) };
  } catch {
    // The message must not show the value, which may contain a password.
  }
  throw new RangeError(
    `${variable} must be the URL of an http or https proxy: correct it, add ${target.hostname} to NO_PROXY, or pass fetch`,
  );
}

function authorization({ username, password }: URL): Record<string, string> {
  if (username === "" && password === "") return {};
  const credentials = Buffer.from(`${decodeURIComponent(username)}:${decodeURIComponent(password)}`);
  return { "Proxy-Authorization": `Basic ${credentials.toString("base64")}` };
}

/** The host of a URL, an IPv6 address without its brackets. */
export function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, "");
}

/** Whether `list` names the target: `*`, a domain with its subdomains, an address or a network, each with or without port. */
function isListed(target: URL, list: string): boolean {
  const host = hostOf(target).replace(/\.$/, "");
  const port = target.port || (target.protocol === "https:" ? "443" : "80");
  return list.split(/[\s,]+/).some((entry) => {
    const [, bracketed, plain, entryPort = port] = /^(?:\[(.*)\]|([^:]*|.*:.*:.*))(?::(\d+))?$/.exec(entry) ?? [];
    const name = (bracketed ?? plain ?? "").toLowerCase().replace(/^\*?\./, "");
    if (name === "" || entryPort !== port) return false;
    return name === "*" || host === name || host.endsWith(`.${name}`) || isInNetwork(host, name);
  });
}

function isInNetwork(host: string, network: string): boolean {
  const [address = "", bits] = network.split("/");
  const version = isIP(host);
  if (version === 0 || isIP(address) !== version) return false;
  const family = version === 4 ? "ipv4" : "ipv6";
  const addresses = new BlockList();
  try {
    addresses.addSubnet(address, Number(bits ?? (version === 4 ? 32 : 128)), family);
  } catch {
    return false;
  }
  return addresses.check(host, family);
}
