//! The history of one directory: operations with their results and times of one logical clock.

use std::fmt;

use wire::{Errno, Fid};

/// A file or directory in a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File {
    pub fid: Fid,
    pub dir: bool,
}

/// An operation. Names are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `open` with `O_CREAT`, with or without `O_EXCL`.
    Create {
        name: usize,
        excl: bool,
    },
    Mknod {
        name: usize,
    },
    Mkdir {
        name: usize,
    },
    Link {
        file: File,
        name: usize,
    },
    Unlink {
        name: usize,
    },
    Rmdir {
        name: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Lookup {
        name: usize,
    },
    /// The result of a full listing for one name.
    Listed {
        name: usize,
    },
    Getattr {
        file: File,
    },
}

impl Op {
    /// The names in the operation.
    pub fn names(&self) -> impl Iterator<Item = usize> {
        let (one, other) = match *self {
            Op::Getattr { .. } => (None, None),
            Op::Rename { from, to } => (Some(from), Some(to)),
            Op::Create { name, .. }
            | Op::Mknod { name }
            | Op::Mkdir { name }
            | Op::Link { name, .. }
            | Op::Unlink { name }
            | Op::Rmdir { name }
            | Op::Lookup { name }
            | Op::Listed { name } => (Some(name), None),
        };
        one.into_iter().chain(other)
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// The file of the name.
    Is(File),
    /// The link count of the file.
    Links(u32),
    Failed(Errno),
}

/// A completed operation.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Start and end times. All are distinct, except those of the parts of one listing.
    pub begun: u64,
    pub ended: u64,
    /// The task that ran it.
    pub task: usize,
    pub op: Op,
    pub answer: Answer,
}

impl Event {
    /// Whether the operation changes nothing at any time.
    pub fn is_read_only(&self) -> bool {
        let looks = matches!(
            self.op,
            Op::Lookup { .. } | Op::Listed { .. } | Op::Getattr { .. }
        );
        looks || matches!(self.answer, Answer::Failed(_))
    }

    /// The files in the operation.
    pub fn files(&self) -> impl Iterator<Item = Fid> {
        let asked = match self.op {
            Op::Link { file, .. } | Op::Getattr { file } => Some(file.fid),
            _ => None,
        };
        let told = match self.answer {
            Answer::Is(file) => Some(file.fid),
            _ => None,
        };
        asked.into_iter().chain(told)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>5}..{:<5} task {:<2} {:?} -> {:?}",
            self.begun, self.ended, self.task, self.op, self.answer
        )
    }
}
