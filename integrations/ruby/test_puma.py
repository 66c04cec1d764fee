"""Puma in cluster mode: a client from before the fork; a killed worker's leadership moves on."""

import os
import re
import signal
import time
from pathlib import Path

from integrations.workers import PAGES, started


def test_the_example_of_the_page_leads_in_one_worker_and_moves_on(environment: dict[str, str], tmp_path: Path) -> None:
    (page,) = [
        block
        for block in re.findall(r"```ruby\n(.*?)```", (PAGES / "rails.md").read_text(), re.DOTALL)
        if "workers 2" in block
    ]
    (tmp_path / "puma.rb").write_text("$stdout.sync = true\n" + page.replace("ttl: 15", "ttl: 5"))
    (tmp_path / "config.ru").write_text('run ->(_) { [200, {}, ["ok"]] }\n')
    with started(["puma", "-C", "puma.rb", "-b", "tcp://127.0.0.1:0"], environment, tmp_path, count=1) as (cluster,):
        cluster.wait_for_output("leading under fencing token")
        time.sleep(1)
        leaders = re.findall(r"leading under fencing token \d+ in (\d+)", cluster.output())
        assert len(leaders) == 1
        os.kill(int(leaders[0]), signal.SIGKILL)
        cluster.wait_for_output("leading under fencing token", 2)
        leaders = re.findall(r"leading under fencing token \d+ in (\d+)", cluster.output())
        assert leaders[0] != leaders[1]
