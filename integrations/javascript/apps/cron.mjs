// A process with one distributed task that fires every second: `cron.mjs [FILE]`, with FILE as a background task.
import { appendFileSync } from "node:fs";
import cron from "node-cron";
import { lockCoordinator } from "volcano-locks/node-cron";

const note = (what, job) => appendFileSync(process.env.JOURNAL, `${what} ${job} ${process.pid}\n`);

cron.setRunCoordinator(lockCoordinator());
const task = cron.schedule(
  "* * * * * *",
  (context) => note("fire", context.date.toISOString()),
  { name: "tick", distributed: true, distributedLease: 5000, missedExecutionTolerance: 2000 },
);
task.on("execution:skipped", (context) => note(context.reason, "tick"));
note("ready", "tick");
