/** The error classes alone: `volcano-locks/errors`, for a module that only handles errors and has to stay small. */

export {
  AuthenticationError,
  ConflictError,
  LockHeldError,
  LockOwnershipLostError,
  NotFoundError,
  PermissionDeniedError,
  RateLimitedError,
  ServerError,
  TransportError,
  UnavailableError,
  ValidationError,
  VolcanoError,
} from "./errors.ts";
