//! IOR's options, and what they mean for each task: its file, its transfers and their data.

use crate::BenchError;
use std::time::Duration;

/// IOR's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// `-o`: name of the file in the subject's root.
    pub file: String,
    /// `-b`: bytes that a task accesses in one piece, in each segment.
    pub block: u64,
    /// `-t`: bytes of each read and write.
    pub transfer: u64,
    /// `-s`: number of segments; each has one block of every task.
    pub segments: u64,
    /// `-F`: a file for each task.
    pub file_per_task: bool,
    /// `-w`: write.
    pub write: bool,
    /// `-r`: read.
    pub read: bool,
    /// `-W`: read back what was written, and compare it.
    pub check_write: bool,
    /// `-R`: compare what is read.
    pub check_read: bool,
    /// `-C`: a task reads what the next task has written.
    pub reorder: bool,
    /// `-z`: random order of the transfers of each task.
    pub random: bool,
    /// Seed of the random order and of the data.
    pub seed: u64,
    /// `-e`: fsync after writing.
    pub sync: bool,
    /// `-B`: direct I/O.
    pub direct: bool,
    /// `-D`: time limit of each write and read; a task then ends after its current transfer.
    pub stonewall: Option<Duration>,
    /// `-i`: number of repetitions.
    pub repetitions: usize,
    /// `-k`: keep the files.
    pub keep: bool,
    /// Stripe count of new files; `None`: from the directory.
    pub stripes: Option<u16>,
}

impl Default for Options {
    /// IOR's defaults.
    fn default() -> Options {
        Options {
            file: "testFile".to_owned(),
            block: 1 << 20,
            transfer: 256 << 10,
            segments: 1,
            file_per_task: false,
            write: true,
            read: true,
            check_write: false,
            check_read: false,
            reorder: false,
            random: false,
            seed: 1,
            sync: false,
            direct: false,
            stonewall: None,
            repetitions: 1,
            keep: false,
            stripes: None,
        }
    }
}

/// Maximum size of a transfer in bytes: each task has buffers of this size.
const TRANSFER_MAX: u64 = 1 << 30;

impl Options {
    /// Checks the options for a number of tasks.
    ///
    /// # Errors
    ///
    /// [`BenchError::Options`] with the option to change.
    pub(super) fn check(&self, tasks: u64) -> Result<(), BenchError> {
        let invalid = |message: &str| Err(BenchError::Options(message.to_owned()));
        let size = self
            .block
            .checked_mul(self.segments)
            .and_then(|bytes| bytes.checked_mul(tasks))
            .filter(|bytes| *bytes <= i64::MAX as u64);
        match () {
            () if self.transfer == 0 || self.transfer > TRANSFER_MAX => {
                invalid("-t must be from 1 byte to 1 GiB")
            }
            () if self.block == 0 || !self.block.is_multiple_of(self.transfer) => {
                invalid("-b must be a multiple of -t")
            }
            () if self.segments == 0 || size.is_none() => {
                invalid("-s must be at least 1, and all blocks together smaller than 8 EiB")
            }
            () if !self.write && !self.read && !self.check_write => invalid("nothing to do: set -w or -r"),
            () if self.check_read && !self.read => invalid("-R needs -r"),
            () if self.repetitions == 0 => invalid("-i must be at least 1"),
            () if self.direct && !self.transfer.is_multiple_of(4096) => {
                invalid("-B (direct I/O) needs a -t that is a multiple of 4096")
            }
            () => Ok(()),
        }
    }

    /// Number of transfers of a task.
    pub(super) fn transfers(&self) -> u64 {
        self.block / self.transfer * self.segments
    }

    /// The name of the file of the task `rank`.
    pub(super) fn file_of(&self, rank: u64) -> String {
        match self.file_per_task {
            true => format!("{}.{rank:08}", self.file),
            false => self.file.clone(),
        }
    }

    /// The offset of a transfer of the task `rank` in its file.
    pub(super) fn offset(&self, (rank, tasks): (u64, u64), transfer: u64) -> u64 {
        let per_block = self.block / self.transfer;
        let (segment, in_block) = (transfer / per_block, transfer % per_block);
        let (place, places) = match self.file_per_task {
            true => (0, 1),
            false => (rank, tasks),
        };
        (segment * places + place) * self.block + in_block * self.transfer
    }

    /// The order of the first `count` transfers of the task `rank`.
    pub(super) fn order(&self, rank: u64, count: u64) -> Box<dyn Iterator<Item = u64>> {
        if !self.random {
            return Box::new(0..count);
        }
        let mut all: Vec<u64> = (0..self.transfers()).collect();
        fastrand::Rng::with_seed(self.seed.wrapping_add(rank)).shuffle(&mut all);
        Box::new(all.into_iter().take(count as usize))
    }
}

/// Fills a buffer with the data of a place: each 8 bytes tell file, writing task and offset apart.
pub(super) fn fill(buffer: &mut [u8], seed: u64, rank: u64, offset: u64) {
    let base = seed.wrapping_add(rank << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut at = offset;
    for word in buffer.chunks_mut(8) {
        let value = (base ^ at).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
        at += 8;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Options, fill};
    use std::collections::BTreeSet;

    fn options(file_per_task: bool) -> Options {
        Options {
            block: 12,
            transfer: 4,
            segments: 3,
            file_per_task,
            ..Options::default()
        }
    }

    #[test]
    fn tasks_share_a_file_without_gap_or_overlap() {
        for (file_per_task, files, len) in [(false, 1, 3 * 3 * 12), (true, 3, 3 * 12)] {
            let options = options(file_per_task);
            options.check(3).unwrap();
            let mut places = BTreeSet::new();
            for rank in 0..3 {
                for transfer in options.order(rank, options.transfers()) {
                    let offset = options.offset((rank, 3), transfer);
                    assert!(places.insert((options.file_of(rank), offset)), "an overlap");
                }
            }
            assert_eq!(places.len(), files * len / 4);
            assert!(places.iter().all(|(_, offset)| offset + 4 <= len as u64));
        }
    }

    #[test]
    fn a_random_order_has_each_transfer_once_and_is_reproducible() {
        let options = Options {
            random: true,
            ..options(true)
        };
        let all: Vec<u64> = options.order(1, 9).collect();
        assert_eq!(all.iter().copied().collect::<BTreeSet<_>>(), (0..9).collect());
        assert_ne!(all, (0..9).collect::<Vec<_>>());
        assert_eq!(options.order(1, 4).collect::<Vec<_>>(), all[..4]);
        assert_ne!(options.order(2, 9).collect::<Vec<_>>(), all);
    }

    #[test]
    fn data_tells_places_and_tasks_apart() {
        let data = |rank, offset| {
            let mut buffer = [0; 20];
            fill(&mut buffer, 1, rank, offset);
            buffer
        };
        let all: BTreeSet<[u8; 20]> = (0..4)
            .flat_map(|rank| (0..64).map(move |i| data(rank, i * 20)))
            .collect();
        assert_eq!(all.len(), 4 * 64);
    }

    #[test]
    fn impossible_options_are_refused() {
        let good = Options::default();
        let bad = [
            Options {
                transfer: 0,
                ..good.clone()
            },
            Options {
                block: 100,
                transfer: 64,
                ..good.clone()
            },
            Options {
                segments: u64::MAX,
                ..good.clone()
            },
            Options {
                write: false,
                read: false,
                ..good.clone()
            },
            Options {
                read: false,
                check_read: true,
                ..good.clone()
            },
            Options {
                direct: true,
                transfer: 512,
                block: 512,
                ..good.clone()
            },
            Options {
                repetitions: 0,
                ..good.clone()
            },
        ];
        assert!(good.check(4096).is_ok());
        for options in bad {
            assert!(options.check(2).is_err(), "{options:?}");
        }
    }
}
