//! The history of one directory: operations with their results, and their times by one logical
//! clock.

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
        let (first, second) = match *self {
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
        first.into_iter().chain(second)
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The operation succeeded.
    Done,
    /// The file that the name leads to.
    Is(File),
    /// The link count of the file.
    Links(u32),
    Failed(Errno),
}

/// A completed operation.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Start and end on the logical clock. All times are distinct, except that the events of one
    /// listing have the same start and end.
    pub start: u64,
    pub end: u64,
    /// The task that ran the operation.
    pub task: usize,
    pub op: Op,
    pub answer: Answer,
}

impl Event {
    /// Whether the operation changes nothing, whenever it takes effect.
    pub fn is_read_only(&self) -> bool {
        let reads = matches!(
            self.op,
            Op::Lookup { .. } | Op::Listed { .. } | Op::Getattr { .. }
        );
        reads || matches!(self.answer, Answer::Failed(_))
    }

    /// The files in the operation.
    pub fn files(&self) -> impl Iterator<Item = Fid> {
        let in_op = match self.op {
            Op::Link { file, .. } | Op::Getattr { file } => Some(file.fid),
            _ => None,
        };
        let in_answer = match self.answer {
            Answer::Is(file) => Some(file.fid),
            _ => None,
        };
        in_op.into_iter().chain(in_answer)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>5}..{:<5} task {:<2} {:?} -> {:?}",
            self.start, self.end, self.task, self.op, self.answer
        )
    }
}
