//! The random steps of a run: operation, offset, length, mount. Steps do not depend on earlier
//! steps, so that shortening a failure can omit any of them.

use super::Config;
use fastrand::Rng;
use std::fmt;

/// One operation on the file, offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read {
        at: u64,
        len: u64,
    },
    Write {
        at: u64,
        len: u64,
    },
    /// Writes at the end of the file.
    Append {
        len: u64,
    },
    MapRead {
        at: u64,
        len: u64,
    },
    MapWrite {
        at: u64,
        len: u64,
    },
    Truncate {
        size: u64,
    },
    Punch {
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
    },
    Allocate {
        at: u64,
        len: u64,
        keep_size: bool,
    },
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    SeekData {
        at: u64,
    },
    SeekHole {
        at: u64,
    },
    Reopen,
    Fsync,
    Fdatasync,
}

/// An operation with its number and mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) number: u32,
    pub(super) via: usize,
    pub(super) op: Op,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mount {}: {:?}", self.number, self.via, self.op)
    }
}

/// Alignment of offsets and lengths in a direct run; one in `UNALIGNED_OF` is unaligned.
const BLOCK: u64 = 4096;
const UNALIGNED_OF: u32 = 10;

/// All steps of a run.
pub(super) fn steps(cfg: &Config, mounts: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(cfg.seed);
    (1..=cfg.operations)
        .map(|number| Step {
            number,
            via: rng.usize(..mounts),
            op: op(cfg, &mut rng),
        })
        .collect()
}

fn op(cfg: &Config, rng: &mut Rng) -> Op {
    let unit = if cfg.direct && rng.u32(..UNALIGNED_OF) != 0 {
        BLOCK
    } else {
        1
    };
    let round = |n: u64| n / unit * unit;
    let at = round(rng.u64(..cfg.size_max));
    let len = round(rng.u64(1..=cfg.length_max)).clamp(unit, cfg.size_max - at.min(cfg.size_max - unit));
    match rng.u32(..if cfg.mapped { 600 } else { 400 }) {
        0..100 => Op::Read { at, len },
        100..200 => Op::Write { at, len },
        200..215 => Op::Append { len },
        215..255 => Op::Truncate { size: at },
        255..280 => Op::Punch { at, len },
        280..290 => Op::Zero { at, len },
        290..305 => Op::Allocate {
            at,
            len,
            keep_size: rng.bool(),
        },
        305..320 => {
            // Copies between the halves of the file, so that the ranges never overlap.
            let half = round(cfg.size_max / 2);
            let (low, len) = (at % half, len.min(half));
            let low = round(low.min(half - len));
            let high = half + round(rng.u64(..=half - len));
            let (from, to) = if rng.bool() { (low, high) } else { (high, low) };
            Op::Copy { from, to, len }
        }
        320..340 => Op::SeekData { at },
        340..360 => Op::SeekHole { at },
        360..380 => Op::Reopen,
        380..390 => Op::Fsync,
        390..400 => Op::Fdatasync,
        400..500 => Op::MapRead { at, len },
        _ => Op::MapWrite { at, len },
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
            assert!((0..3).all(|via| all.iter().any(|s| s.via == via)));
            for step in all {
                let end = match step.op {
                    Op::Read { at, len } | Op::Write { at, len } | Op::Punch { at, len } => at + len,
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
