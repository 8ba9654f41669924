//! What clients did in one directory, and when: operations with their answers, by the time of one logical clock.

use std::fmt;

use wire::{Errno, Fid};

/// A file or a directory, as an answer tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File {
    pub fid: Fid,
    pub dir: bool,
}

/// What was asked for. Names are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `open` with `O_CREAT`, and `O_EXCL` or not.
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
    /// What a reading of the whole directory said of one name.
    Listed {
        name: usize,
    },
    Getattr {
        file: File,
    },
}

impl Op {
    /// The names that it is about.
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

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// The file that the name leads to.
    Is(File),
    /// How many names the file has.
    Links(u32),
    Failed(Errno),
}

/// An operation that was done.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The times of its beginning and end: all are different, but for those of the parts of one listing.
    pub begun: u64,
    pub ended: u64,
    /// Who did it.
    pub task: usize,
    pub op: Op,
    pub answer: Answer,
}

impl Event {
    /// Whether it changed nothing, whenever it came.
    pub fn only_looks(&self) -> bool {
        let looks = matches!(
            self.op,
            Op::Lookup { .. } | Op::Listed { .. } | Op::Getattr { .. }
        );
        looks || matches!(self.answer, Answer::Failed(_))
    }

    /// The files that it is about.
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
