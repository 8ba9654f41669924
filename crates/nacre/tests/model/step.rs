//! The steps of a sequence, and their random choice. The steps use few names, so that they affect
//! each other.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// One operation, its user and mount, and the check after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Index of the mount that executes the operation, modulo the number of mounts.
    pub(crate) mount: usize,
    /// Whether an ordinary user executes the operation, instead of root.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) user: bool,
    /// A random number that selects the mount and the extent of the check after the step.
    pub(crate) probe: usize,
    pub(crate) op: Op,
}

/// An operation. Paths are relative to the sequence's directory; slots hold open files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Op {
    Open {
        slot: usize,
        path: String,
        how: OpenHow,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Pread {
        slot: usize,
        at: u64,
        len: usize,
    },
    Pwrite {
        slot: usize,
        at: u64,
        len: usize,
        fill: u8,
    },
    Ftruncate {
        slot: usize,
        size: u64,
    },
    Fallocate {
        slot: usize,
        kind: FallocateKind,
        at: u64,
        len: u64,
    },
    Fsync {
        slot: usize,
    },
    Fstat {
        slot: usize,
    },
    Flock {
        slot: usize,
        kind: Lock,
    },
    Fcntl {
        slot: usize,
        kind: Lock,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Rmdir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: RenameMode,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        target: String,
        path: String,
    },
    Readlink {
        path: String,
    },
    Stat {
        path: String,
        follow: bool,
    },
    Readdir {
        path: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Utimens {
        path: String,
        mtime: i64,
    },
    Access {
        path: String,
        want: u32,
    },
    Setxattr {
        path: String,
        name: String,
        value: String,
        how: SetxattrMode,
    },
    Getxattr {
        path: String,
        name: String,
    },
    Listxattr {
        path: String,
    },
    Removexattr {
        path: String,
        name: String,
    },
    Statfs,
}

/// Flags of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OpenHow {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) read: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) write: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) append: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) create: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) exclusive: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) truncate: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) nofollow: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FallocateKind {
    Allocate,
    Keep,
    Punch,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Lock {
    Shared,
    Exclusive,
    Unlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum RenameMode {
    Plain,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum SetxattrMode {
    Either,
    Create,
    Replace,
}

/// Maximum number of open files of a sequence.
pub(crate) const SLOTS: usize = 5;
/// Number of random steps of a sequence, after two steps that create directories.
const STEPS: std::ops::RangeInclusive<usize> = 10..=60;

/// The sequence that a seed determines.
pub(crate) fn sequence(seed: u64) -> Vec<Step> {
    let rng = &mut Rng::with_seed(seed);
    let count = rng.usize(STEPS);
    let mkdir = |path: &str| Op::Mkdir {
        path: path.to_owned(),
        mode: 0o777,
    };
    let initial = [mkdir("d"), mkdir("e")];
    let ops = initial.into_iter().chain((0..count).map(|_| random_op(rng)));
    let ops: Vec<Op> = ops.collect();
    ops.into_iter()
        .map(|op| Step {
            mount: rng.usize(..12),
            user: rng.usize(..4) == 0,
            probe: rng.usize(..96),
            op,
        })
        .collect()
}

fn pick<T: Copy>(rng: &mut Rng, values: &[T]) -> T {
    values[rng.usize(..values.len())]
}

fn path(rng: &mut Rng) -> String {
    let first = pick(rng, &["d", "d", "d", "e", "e", "a", "b"]);
    match rng.usize(..10) {
        0..2 => first.to_owned(),
        2..9 => format!("{first}/{}", pick(rng, &["a", "b", "c"])),
        _ => format!("{first}/{}/{}", pick(rng, &["a", "b"]), pick(rng, &["a", "b"])),
    }
}

fn offset(rng: &mut Rng) -> u64 {
    match rng.usize(..8) {
        0 => rng.u64(..160_000),
        1 => pick(rng, &[4096, 65536, 131_072, 65535]),
        2..4 => 0,
        _ => rng.u64(..9000),
    }
}

fn open_how(rng: &mut Rng) -> OpenHow {
    let (read, write) = pick(
        rng,
        &[
            (true, false),
            (true, true),
            (true, true),
            (true, true),
            (false, true),
        ],
    );
    let create = rng.usize(..10) < 7;
    OpenHow {
        read,
        write,
        append: write && rng.usize(..4) == 0,
        create,
        exclusive: create && rng.usize(..4) == 0,
        truncate: write && rng.usize(..5) == 0,
        nofollow: rng.usize(..10) == 0,
        directory: !create && rng.usize(..10) == 0,
    }
}

fn random_op(rng: &mut Rng) -> Op {
    let slot = rng.usize(..SLOTS);
    let mode = pick(rng, &[0o644, 0o666, 0o600, 0o755, 0o777, 0o777, 0o1775, 0o444, 0]);
    let name = pick(rng, &["user.x", "user.y", "trusted.x"]).to_owned();
    let lock = pick(
        rng,
        &[Lock::Shared, Lock::Exclusive, Lock::Exclusive, Lock::Unlock],
    );
    match rng.usize(..100) {
        0..14 => Op::Open {
            slot,
            path: path(rng),
            how: open_how(rng),
            mode: mode & 0o777,
        },
        14..17 => Op::Close { slot },
        17..22 => Op::Pread {
            slot,
            at: offset(rng),
            len: rng.usize(1..20_000),
        },
        22..34 => Op::Pwrite {
            slot,
            at: offset(rng),
            len: rng.usize(1..7000),
            fill: rng.u8(1..),
        },
        34..37 => Op::Ftruncate {
            slot,
            size: offset(rng),
        },
        37..39 => Op::Fallocate {
            slot,
            kind: pick(
                rng,
                &[
                    FallocateKind::Allocate,
                    FallocateKind::Keep,
                    FallocateKind::Punch,
                    FallocateKind::Punch,
                ],
            ),
            at: offset(rng),
            len: 1 + offset(rng),
        },
        39 => Op::Fsync { slot },
        40..43 => Op::Fstat { slot },
        43..46 => Op::Flock { slot, kind: lock },
        46..49 => Op::Fcntl { slot, kind: lock },
        49..51 => Op::Truncate {
            path: path(rng),
            size: offset(rng),
        },
        51..56 => Op::Mkdir {
            path: path(rng),
            mode: mode | 0o700,
        },
        56..58 => Op::Rmdir { path: path(rng) },
        58..63 => Op::Unlink { path: path(rng) },
        63..71 => Op::Rename {
            from: path(rng),
            to: path(rng),
            flags: pick(
                rng,
                &[
                    RenameMode::Plain,
                    RenameMode::Plain,
                    RenameMode::Plain,
                    RenameMode::Plain,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ],
            ),
        },
        71..75 => Op::Link {
            from: path(rng),
            to: path(rng),
        },
        75..77 => Op::Symlink {
            target: pick(rng, &["a", "b", "d/a", "e", "nowhere"]).to_owned(),
            path: path(rng),
        },
        77 => Op::Readlink { path: path(rng) },
        78..82 => Op::Stat {
            path: path(rng),
            follow: rng.bool(),
        },
        82..85 => Op::Readdir {
            path: pick(rng, &["d", "e", "a", "d/a", "."]).to_owned(),
        },
        85..88 => Op::Chmod {
            path: path(rng),
            mode,
        },
        88..90 => Op::Chown {
            path: path(rng),
            uid: pick(rng, &[None, Some(0), Some(1000)]),
            gid: pick(rng, &[None, Some(0), Some(1000)]),
        },
        90 => Op::Utimens {
            path: path(rng),
            mtime: rng.i64(1..2_000_000_000),
        },
        91 => Op::Access {
            path: path(rng),
            want: rng.u32(1..8),
        },
        92..95 => Op::Setxattr {
            path: path(rng),
            name,
            value: "v".repeat(rng.usize(..300)),
            how: pick(
                rng,
                &[
                    SetxattrMode::Either,
                    SetxattrMode::Either,
                    SetxattrMode::Create,
                    SetxattrMode::Replace,
                ],
            ),
        },
        95..97 => Op::Getxattr {
            path: path(rng),
            name,
        },
        97 => Op::Listxattr { path: path(rng) },
        98 => Op::Removexattr {
            path: path(rng),
            name,
        },
        _ => Op::Statfs,
    }
}

impl Op {
    /// The paths of an operation.
    pub(crate) fn paths(&self) -> Vec<&str> {
        match self {
            Op::Rename { from, to, .. } | Op::Link { from, to } => vec![from, to],
            Op::Open { path, .. }
            | Op::Truncate { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Rmdir { path }
            | Op::Unlink { path }
            | Op::Symlink { path, .. }
            | Op::Readlink { path }
            | Op::Stat { path, .. }
            | Op::Readdir { path }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Utimens { path, .. }
            | Op::Access { path, .. }
            | Op::Setxattr { path, .. }
            | Op::Getxattr { path, .. }
            | Op::Listxattr { path }
            | Op::Removexattr { path, .. } => vec![path],
            _ => Vec::new(),
        }
    }

    /// The open file of an operation.
    pub(crate) fn slot(&self) -> Option<usize> {
        match *self {
            Op::Open { slot, .. }
            | Op::Close { slot }
            | Op::Pread { slot, .. }
            | Op::Pwrite { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Fallocate { slot, .. }
            | Op::Fsync { slot }
            | Op::Fstat { slot }
            | Op::Flock { slot, .. }
            | Op::Fcntl { slot, .. } => Some(slot),
            _ => None,
        }
    }
}
