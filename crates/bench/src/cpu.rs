//! CPU time: of this process and of others that work for a subject.

use std::time::{Duration, Instant};

/// How long processes must be still: the kernel counts in hundredths of a second.
const STILL: Duration = Duration::from_millis(100);

/// CPU time, user and system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Of this process.
    own: Duration,
    /// Of the others.
    pub(crate) others: Duration,
}

impl Used {
    /// Of all.
    pub(crate) fn all(self) -> Duration {
        self.own + self.others
    }

    /// Since then.
    pub(crate) fn since(self, before: Used) -> Used {
        Used {
            own: self.own.saturating_sub(before.own),
            others: self.others.saturating_sub(before.others),
        }
    }
}

/// CPU time that this process and the processes `others` have used.
pub(crate) fn used(others: &[u32]) -> Used {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Used {
        own: Duration::new(own.tv_sec.unsigned_abs(), own.tv_nsec.unsigned_abs() as u32),
        others: others.iter().filter_map(|&pid| of_process(pid)).sum(),
    }
}

/// Waits until these processes have done what they do behind a load's back (destroying objects, writing their stores): until for a
/// while they take no CPU time to speak of, but not longer than `at_most`.
pub fn settle(processes: &[u32], at_most: Duration) {
    let begun = Instant::now();
    let all = || {
        processes
            .iter()
            .filter_map(|&pid| of_process(pid))
            .sum::<Duration>()
    };
    let mut before = all();
    while begun.elapsed() < at_most {
        std::thread::sleep(STILL);
        let now = all();
        if now.saturating_sub(before) <= STILL / 10 {
            return;
        }
        before = now;
    }
}

/// utime and stime of /proc/PID/stat, which count in ticks of 10 ms.
fn of_process(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command may hold spaces and brackets; the fields are counted from behind it.
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
    fn own_time_grows_with_work_and_is_seen_from_outside() {
        let before = used(&[]);
        let mut x = 1u64;
        while used(&[]).since(before).all() < Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(of_process(std::process::id()).is_some_and(|d| d >= Duration::from_millis(10)));
        assert_eq!(of_process(u32::MAX), None);
    }
}
