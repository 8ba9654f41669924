//! Memory that processes have: of this one and of others that work for a subject, looked at now and then while something
//! runs.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often it is looked at in the beginning.
const OFTEN: Duration = Duration::from_millis(20);
/// Samples that are kept at most: then every other one goes, and it is looked half as often.
const SAMPLES: usize = 1024;

/// Bytes in memory at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Seconds from the beginning.
    pub(crate) at: f64,
    /// Of this process.
    pub(crate) own: u64,
    /// Of the others together.
    pub(crate) others: u64,
}

/// Bytes that a process has in memory.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Does something, and looks at the memory meanwhile: in the beginning, now and then, and at the end.
pub(crate) fn watched<T>(others: &[u32], work: impl FnOnce() -> T) -> (T, Vec<Sample>) {
    let begun = Instant::now();
    let look = || Sample {
        at: begun.elapsed().as_secs_f64(),
        own: resident_bytes(std::process::id()).unwrap_or(0),
        others: others.iter().filter_map(|&pid| resident_bytes(pid)).sum(),
    };
    let (working, over) = channel::<()>();
    std::thread::scope(|scope| {
        let watching = scope.spawn(move || {
            let (mut samples, mut pause) = (vec![look()], OFTEN);
            while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                samples.push(look());
                if samples.len() >= SAMPLES {
                    samples = samples.into_iter().step_by(2).collect();
                    pause *= 2;
                }
            }
            samples.push(look());
            samples
        });
        let value = work();
        drop(working);
        (value, watching.join().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_seen_while_it_is_held() {
        let others = [std::process::id()];
        let (held, samples) = watched(&others, || {
            let held = std::hint::black_box(vec![1u8; 64 << 20]);
            std::thread::sleep(OFTEN * 3);
            held
        });
        let (first, last) = (samples[0], samples[samples.len() - 1]);
        assert!(samples.len() >= 3 && last.at >= 0.06, "{samples:?}");
        // Half of it at least: other tests give memory back meanwhile.
        assert!(
            last.own > first.own + (32 << 20) && last.others > first.others,
            "{samples:?}"
        );
        drop(held);
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
