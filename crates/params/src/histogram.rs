//! Histograms of durations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of buckets. The last one has no upper bound.
pub const BUCKETS: usize = 14;

/// Counts durations by size. Several threads may add samples at once without a lock.
#[derive(Debug, Default)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Histogram {
    /// Adds a duration, in microseconds.
    pub fn add(&self, usecs: u64) {
        self.0[bucket_of(usecs)].fetch_add(1, Relaxed);
    }

    /// Removes all samples.
    pub fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// The number of samples in each bucket.
    pub fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.0[bucket].load(Relaxed))
    }
}

/// The largest duration of a bucket, in microseconds: a power of four. `None` for the last bucket.
pub fn bucket_max(bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKETS).then(|| 1 << (2 * bucket))
}

fn bucket_of(usecs: u64) -> usize {
    let bits = u64::BITS - usecs.saturating_sub(1).leading_zeros();
    (bits.div_ceil(2) as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Histogram, bucket_max, bucket_of};

    #[test]
    fn bucket_holds_durations_up_to_its_maximum() {
        assert_eq!([0, 1, 2, 4, 5, 16, 17].map(bucket_of), [0, 0, 1, 1, 2, 2, 3]);
        for bucket in 0..BUCKETS - 1 {
            let max = bucket_max(bucket).unwrap_or_default();
            assert_eq!((bucket_of(max), bucket_of(max + 1)), (bucket, bucket + 1));
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_max(BUCKETS - 1), None);
    }

    #[test]
    fn samples_are_counted_in_their_bucket() {
        let histogram = Histogram::default();
        for usecs in [3, 4, 100] {
            histogram.add(usecs);
        }
        assert_eq!(histogram.counts()[..5], [0, 2, 0, 0, 1]);
        histogram.clear();
        assert_eq!(histogram.counts(), [0; BUCKETS]);
    }
}
