//! The calls of a run with their results and times.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use wire::Fid;

use crate::attrs::{Acl, PermCall, XattrCall, XattrOutcome};
use crate::data::ClientId;
use crate::names;
use crate::weather::Digest;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A call on names.
    Name(names::Call),
    /// Writes a unique value to a block.
    Write(Fid, u8, u64),
    /// Writes a unique value to a block through a mapping.
    Store(Fid, u8, u64),
    /// Appends a block with a unique value.
    Append(Fid, u64),
    /// Reads a block.
    Read(Fid, u8),
    /// Allocates a number of bytes beyond the end of all data.
    Allocate(Fid, u32),
    /// Truncates a file to a number of blocks.
    Truncate(Fid, u8),
    /// Punches a hole in place of a block.
    Punch(Fid, u8),
    /// Makes the caller's writes durable.
    Fsync(Fid),
    /// Locks (or unlocks) a whole file.
    Flock(Fid, bool),
    /// Closes a file.
    Close(Fid),
    /// Reads the attributes.
    Stat(Fid),
    /// Changes owner, mode or ACL.
    Perm(Fid, PermCall),
    /// Reads the access ACL.
    GetAcl(Fid),
    /// Sets the modification time, seconds since 1970.
    SetTime(Fid, u64),
    /// Gets, sets or removes the extended attribute with this number, or lists all.
    Xattr(Fid, u8, XattrCall),
    /// Reads space and inodes of the file system.
    Statfs,
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Whether the file is a directory.
    pub is_dir: bool,
    /// The permission bits of the mode.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Number of names.
    pub links: u32,
    /// Size, bytes.
    pub size: u64,
    /// The modification time, if a program has set it.
    pub mtime: Option<u64>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The result of a call on names.
    Name(names::Outcome),
    /// Success.
    Done,
    /// The value of a block.
    Value(u64),
    /// The block has bytes of more than one value.
    Torn(String),
    /// The position of an append, bytes.
    At(u64),
    /// Attributes.
    Stat(Stat),
    /// An access ACL and the mode in it.
    Acl(Option<(Acl, u32)>),
    /// The result of a call on an extended attribute.
    Xattr(XattrOutcome),
    /// The numbers of a file's extended attributes.
    Xattrs(BTreeSet<u8>),
    /// A result that no call can have, such as a value that no call has set.
    Wrong(String),
    /// An error; the call may or may not have had an effect.
    Failed(wire::Errno),
}

/// A call in a history.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The caller.
    pub client: ClientId,
    /// The call.
    pub call: Call,
    /// Position of its start among all events of the run.
    pub start: u64,
    /// Position of its end; `u64::MAX` while it runs.
    pub end: u64,
    /// Virtual time of its start and end.
    pub at: (Duration, Duration),
    /// `None` while it runs, and for a caller that died.
    pub outcome: Option<Outcome>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.at.0.as_secs_f64(), self.at.1.as_secs_f64());
        write!(
            f,
            "{from:10.4} {to:10.4} client {} {:?}: ",
            self.client, self.call
        )?;
        match &self.outcome {
            Some(outcome) => write!(f, "{outcome:?}"),
            None => f.write_str("no result"),
        }
    }
}

/// An event of the simulator itself.
#[derive(Clone, Debug)]
pub struct Note {
    /// Its position among all events of the run.
    pub order: u64,
    /// Virtual time.
    pub at: Duration,
    /// The event.
    pub what: String,
}

#[derive(Default)]
struct State {
    clock: u64,
    entries: Vec<Entry>,
    notes: Vec<Note>,
}

/// The history of a run. Clones share it.
#[derive(Clone, Default)]
pub struct History {
    state: Arc<Mutex<State>>,
    digest: Digest,
}

impl History {
    /// Creates an empty history. Each event is added to `digest`.
    pub fn new(digest: Digest) -> History {
        History {
            state: Arc::default(),
            digest,
        }
    }

    /// Runs a call and records it.
    pub async fn call(&self, client: ClientId, call: Call, work: impl Future<Output = Outcome>) -> Outcome {
        let now = crate::system::elapsed();
        let index = {
            let mut state = self.state.lock();
            state.clock += 1;
            let start = state.clock;
            state.entries.push(Entry {
                client,
                call,
                start,
                end: u64::MAX,
                at: (now, now),
                outcome: None,
            });
            state.entries.len() - 1
        };
        let outcome = work.await;
        let mut state = self.state.lock();
        state.clock += 1;
        let end = state.clock;
        let entry = &mut state.entries[index];
        entry.end = end;
        entry.at.1 = crate::system::elapsed();
        entry.outcome = Some(outcome.clone());
        let text = entry.to_string();
        self.digest.add(text.as_bytes());
        crate::watchdog::note(&text);
        outcome
    }

    /// Records an event of the simulator. Returns its position among all events.
    pub fn note(&self, what: impl Into<String>) -> u64 {
        let what = what.into();
        self.digest.add(what.as_bytes());
        crate::watchdog::note(&what);
        let mut state = self.state.lock();
        state.clock += 1;
        let order = state.clock;
        state.notes.push(Note {
            order,
            at: crate::system::elapsed(),
            what,
        });
        order
    }

    /// All calls, in the order of their starts.
    pub fn entries(&self) -> Vec<Entry> {
        self.state.lock().entries.clone()
    }

    /// All calls and events as text, in the order of their ends.
    pub fn show(&self) -> String {
        let state = self.state.lock();
        let calls = state.entries.iter().map(|e| (e.end, e.start, e.to_string()));
        let notes = state.notes.iter().map(|note| {
            let text = format!("{:10.4} {:>10} ---- {}", note.at.as_secs_f64(), "", note.what);
            (note.order, note.order, text)
        });
        let mut lines: Vec<_> = calls.chain(notes).collect();
        lines.sort();
        lines.into_iter().map(|(_, _, text)| text + "\n").collect()
    }
}
