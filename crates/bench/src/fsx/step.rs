//! The random steps of a run: operation, offset, length, mount. Steps do not depend on earlier
//! steps, so that shortening a failure can omit any of them.

use super::Config;
use fastrand::Rng;
use std::fmt;

/// One operation on the file, offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read {
        offset: u64,
        len: u64,
    },
    Write {
        offset: u64,
        len: u64,
    },
    /// Writes at the end of the file.
    Append {
        len: u64,
    },
    MapRead {
        offset: u64,
        len: u64,
    },
    MapWrite {
        offset: u64,
        len: u64,
    },
    Truncate {
        size: u64,
    },
    Punch {
        offset: u64,
        len: u64,
    },
    Zero {
        offset: u64,
        len: u64,
    },
    Allocate {
        offset: u64,
        len: u64,
        keep_size: bool,
    },
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    SeekData {
        offset: u64,
    },
    SeekHole {
        offset: u64,
    },
    Reopen,
    Fsync,
    Fdatasync,
}

/// An operation with its number and mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Number of the step, from 1.
    pub(super) number: u32,
    /// Index of the mount, from 0.
    pub(super) mount_index: usize,
    pub(super) op: Op,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mount {}: {:?}", self.number, self.mount_index, self.op)
    }
}

/// Alignment of offsets and lengths in a run with direct I/O, in bytes.
pub(super) const BLOCK: u64 = 4096;
/// One in this many steps of a run with direct I/O ignores the alignment.
const UNALIGNED_ONE_IN: u32 = 10;

/// All steps of a run.
pub(super) fn steps(cfg: &Config, mounts: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(cfg.seed);
    (1..=cfg.operations)
        .map(|number| Step {
            number,
            mount_index: rng.usize(..mounts),
            op: random_op(cfg, &mut rng),
        })
        .collect()
}

fn random_op(cfg: &Config, rng: &mut Rng) -> Op {
    let unit = if cfg.direct && rng.u32(..UNALIGNED_ONE_IN) != 0 {
        BLOCK
    } else {
        1
    };
    let round_down = |n: u64| n / unit * unit;
    let offset = round_down(rng.u64(..cfg.size_max));
    let len =
        round_down(rng.u64(1..=cfg.length_max)).clamp(unit, cfg.size_max - offset.min(cfg.size_max - unit));
    // The length of each range below, out of 400 (600 with mappings), is the operation's weight.
    match rng.u32(..if cfg.mapped { 600 } else { 400 }) {
        0..100 => Op::Read { offset, len },
        100..200 => Op::Write { offset, len },
        200..215 => Op::Append { len },
        215..255 => Op::Truncate { size: offset },
        255..280 => Op::Punch { offset, len },
        280..290 => Op::Zero { offset, len },
        290..305 => Op::Allocate {
            offset,
            len,
            keep_size: rng.bool(),
        },
        305..320 => {
            // Copy between the halves of the maximum size, so that the ranges never overlap.
            let half = round_down(cfg.size_max / 2);
            let (low, len) = (offset % half, len.min(half));
            let low = round_down(low.min(half - len));
            let high = half + round_down(rng.u64(..=half - len));
            let (from, to) = if rng.bool() { (low, high) } else { (high, low) };
            Op::Copy { from, to, len }
        }
        320..340 => Op::SeekData { offset },
        340..360 => Op::SeekHole { offset },
        360..380 => Op::Reopen,
        380..390 => Op::Fsync,
        390..400 => Op::Fdatasync,
        400..500 => Op::MapRead { offset, len },
        _ => Op::MapWrite { offset, len },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_depend_on_the_seed_and_stay_within_size_max() {
        for direct in [false, true] {
            let cfg = Config {
                seed: 5,
                operations: 20_000,
                direct,
                mapped: true,
                ..Config::default()
            };
            let all = steps(&cfg, 3);
            assert_eq!(all, steps(&cfg, 3));
            assert_ne!(all, steps(&Config { seed: 6, ..cfg }, 3));
            assert!((0..3).all(|mount_index| all.iter().any(|s| s.mount_index == mount_index)));
            for step in all {
                let end = match step.op {
                    Op::Read { offset, len } | Op::Write { offset, len } | Op::Punch { offset, len } => {
                        offset + len
                    }
                    Op::Copy { from, to, len } => {
                        assert!(from + len <= to || to + len <= from, "{step}");
                        from.max(to) + len
                    }
                    Op::Truncate { size } => size,
                    _ => 0,
                };
                assert!(end <= cfg.size_max, "{step}");
            }
        }
    }
}
