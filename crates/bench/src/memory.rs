//! Resident memory of this process and of other processes that serve a subject, sampled during a
//! phase.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Initial interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// At this number of samples, every other one is dropped and the interval doubles.
const SAMPLES_MAX: usize = 1024;

/// Resident bytes at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemorySample {
    /// Seconds since the first sample.
    pub(crate) seconds: f64,
    /// Resident bytes of this process.
    pub(crate) own: u64,
    /// Resident bytes of the other processes together.
    pub(crate) others: u64,
}

/// Resident bytes of a process; `None` if it has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Samples memory while `work` runs, including its beginning and its end.
pub(crate) fn sample_while<T>(others: &[u32], work: impl FnOnce() -> T) -> (T, Vec<MemorySample>) {
    let start_time = Instant::now();
    let sample = || MemorySample {
        seconds: start_time.elapsed().as_secs_f64(),
        own: resident_bytes(std::process::id()).unwrap_or(0),
        others: others.iter().filter_map(|&pid| resident_bytes(pid)).sum(),
    };
    // The sampling thread may start late; this thread takes the first sample before the work.
    let mut samples = vec![sample()];
    // Dropping the sender ends the sampling.
    let (work_guard, work_finished) = channel::<()>();
    std::thread::scope(|scope| {
        let sampling = scope.spawn(move || {
            let mut pause = SAMPLE_INTERVAL;
            while work_finished.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                samples.push(sample());
                if samples.len() >= SAMPLES_MAX {
                    samples = samples.into_iter().step_by(2).collect();
                    pause *= 2;
                }
            }
            samples.push(sample());
            samples
        });
        let value = work();
        drop(work_guard);
        (value, sampling.join().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_show_allocated_memory() {
        let others = [std::process::id()];
        let (allocation, samples) = sample_while(&others, || {
            let allocation = std::hint::black_box(vec![1u8; 64 << 20]);
            std::thread::sleep(SAMPLE_INTERVAL * 3);
            allocation
        });
        let (first, last) = (samples[0], samples[samples.len() - 1]);
        assert!(last.seconds >= 0.06, "{samples:?}");
        // Expect only half of the allocation: other tests release memory meanwhile.
        assert!(
            last.own > first.own + (32 << 20) && last.others > first.others,
            "{samples:?}"
        );
        drop(allocation);
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
