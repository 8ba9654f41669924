//! Results of steps, in a form that the model and a real file system share.

use rustix::io::Errno;
use std::collections::BTreeSet;

/// The result of one step.
pub(crate) type Outcome = Result<Answer, Errno>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Done,
    Count(usize),
    Bytes(Bytes),
    Text(String),
    Names(BTreeSet<String>),
    Attr(Attr),
}

/// Attributes that the model predicts exactly.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attr {
    pub(crate) kind: char,
    /// Permissions; 0o777 for each symbolic link.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    /// Size in bytes; 0 for each directory, because file systems differ.
    pub(crate) size: u64,
}

/// File contents, with a short Debug form.
#[derive(Clone, PartialEq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes:", self.0.len())?;
        let mut rest = &self.0[..];
        for _ in 0..12 {
            let Some(first) = rest.first() else { return Ok(()) };
            let run = rest.iter().take_while(|b| *b == first).count();
            write!(f, " {first:#04x}*{run}")?;
            rest = &rest[run..];
        }
        write!(f, " ...")
    }
}
