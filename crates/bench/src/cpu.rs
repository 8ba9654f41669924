//! CPU time: of this process and of others that work for a subject.

use std::time::Duration;

/// CPU time that this process and the processes `others` have used, user and system.
pub(crate) fn used(others: &[u32]) -> Duration {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = Duration::new(own.tv_sec.unsigned_abs(), own.tv_nsec.unsigned_abs() as u32);
    own + others.iter().filter_map(|&pid| of_process(pid)).sum::<Duration>()
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
        while used(&[]) < before + Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(of_process(std::process::id()).is_some_and(|d| d >= Duration::from_millis(10)));
        assert_eq!(of_process(u32::MAX), None);
    }
}
