//! CPU time of this process and of other processes that serve a subject.

use std::time::{Duration, Instant};

/// Interval between two observations; much longer than a tick of the kernel's CPU time, 10 ms.
const OBSERVATION_INTERVAL: Duration = Duration::from_millis(100);

/// CPU time, in user and kernel mode, of this process and of other processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    /// CPU time of this process.
    own: Duration,
    /// CPU time of the other processes together.
    pub(crate) others: Duration,
}

impl CpuTime {
    /// The CPU time of all processes.
    pub(crate) fn total(self) -> Duration {
        self.own + self.others
    }

    /// The difference to an earlier value.
    pub(crate) fn since(self, before: CpuTime) -> CpuTime {
        CpuTime {
            own: self.own.saturating_sub(before.own),
            others: self.others.saturating_sub(before.others),
        }
    }
}

/// CPU time used so far by this process and by `others`.
pub(crate) fn cpu_time(others: &[u32]) -> CpuTime {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    CpuTime {
        own: Duration::new(own.tv_sec.unsigned_abs(), own.tv_nsec.unsigned_abs() as u32),
        others: others.iter().filter_map(|&pid| cpu_time_of(pid)).sum(),
    }
}

/// Waits until these processes are idle: until their background work (destroying objects, writing
/// stores) uses at most a tenth of one CPU. Returns after `at_most` in any case.
pub fn wait_until_idle(processes: &[u32], at_most: Duration) {
    let start_time = Instant::now();
    let total = || {
        processes
            .iter()
            .filter_map(|&pid| cpu_time_of(pid))
            .sum::<Duration>()
    };
    let mut before = total();
    while start_time.elapsed() < at_most {
        std::thread::sleep(OBSERVATION_INTERVAL);
        let after = total();
        if after.saturating_sub(before) <= OBSERVATION_INTERVAL / 10 {
            return;
        }
        before = after;
    }
}

/// The sum of utime and stime in /proc/PID/stat, which count clock ticks; `None` if the process has
/// ended.
fn cpu_time_of(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command, field 2, may contain spaces and parentheses: count the fields after it. utime
    // and stime are fields 14 and 15 of proc_pid_stat(5).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(
        ticks * 1000 / rustix::param::clock_ticks_per_second(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_busy_process_grows() {
        let before = cpu_time(&[]);
        let mut x = 1u64;
        while cpu_time(&[]).since(before).total() < Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(cpu_time_of(std::process::id()).is_some_and(|d| d >= Duration::from_millis(10)));
        assert_eq!(cpu_time_of(u32::MAX), None);
    }
}
