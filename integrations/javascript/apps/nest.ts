// A Nest application with exclusive methods: `nest.ts` as compiled by the tests.
import "reflect-metadata";
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Inject, Injectable, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { Cron, ScheduleModule } from "@nestjs/schedule";
import { Client, type LockGuard } from "volcano-locks";
import { Exclusive, VolcanoLocksModule } from "volcano-locks/nestjs";

const note = (what: string, job: string) => appendFileSync(process.env.JOURNAL!, `${what} ${job} ${process.pid}\n`);
const seconds = Number(process.env.SECONDS ?? "0.2");

@Injectable()
class Jobs {
  constructor(@Inject(Client) readonly client: Client) {}

  @Cron("* * * * * *")
  @Exclusive("outer", { ttl: 5 })
  async outer() {
    await this.run("outer");
  }

  @Exclusive((_completed: unknown) => "inner", { ttl: 5, passGuard: true })
  @Cron("* * * * * *")
  async inner(_completed: unknown, guard?: LockGuard) {
    guard?.throwIfLost();
    await this.run(guard === undefined ? "unguarded" : "inner");
  }

  async run(job: string) {
    note("start", job);
    await sleep(seconds * 1000);
    note("end", job);
  }
}

@Module({
  imports: process.env.NO_MODULE ? [ScheduleModule.forRoot()] : [
    ScheduleModule.forRoot(),
    VolcanoLocksModule.forRootAsync({ useFactory: () => ({ shutdownSeconds: 3 }) }),
  ],
  providers: process.env.NO_MODULE ? [{ provide: Client, useValue: null }, Jobs] : [Jobs],
})
class AppModule {}

const app = await NestFactory.createApplicationContext(AppModule, { logger: ["error", "warn"] });
app.enableShutdownHooks();
note("ready", "app");
