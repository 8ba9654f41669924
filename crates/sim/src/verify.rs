//! Compares a history with the promises of the file system.

mod attrs;

use std::collections::{BTreeMap, BTreeSet};

use wire::Fid;

use crate::data::{self, BlockSpec, ClientId};
use crate::flocks::{self, FlockSpec};
use crate::history::{Call, Entry, Outcome};
use crate::linear::{Spec, Timed, Verdict, check};
use crate::names::{self, NameSpec};
use crate::workload::BLOCK;

/// Number of states at which a check gives up.
const STATES_MAX: usize = 30_000;

/// The events that weaken promises. All exceptions from the promises of a file system that recovers
/// are here and nowhere else:
///
/// - A server that crashes forgets the changes that no sync covers. Its clients replay them, so a
///   crash loses nothing unless a client died or was evicted: its changes may be lost, and those
///   that depend on them.
/// - An OST that cannot write, or has less space than it granted, loses data that a client's write
///   has passed to the client's cache. `fsync` and the file's descriptors report that; without an
///   `fsync`, the write counts as lost.
/// - A store through a mapping reserves no space. If the OST has none, the store is lost; `fsync`,
///   `close` or the next fault reports that.
/// - An OST without space for its records does not commit, so its clients keep their requests.
/// - A client that a server evicts may answer calls from its caches until it notices.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Clients that died or that a server evicted.
    pub clients: BTreeSet<ClientId>,
    /// Position of each death of the metadata server among all events.
    pub mds: Vec<u64>,
    /// Position of each death of a server with data of files.
    pub oss: Vec<u64>,
    /// Position of the start of each fault of a disk with data: changes fail, or space is missing.
    pub disks: Vec<u64>,
    /// Whether the disks of the OSTs are so small that the calls fill them.
    pub small_disks: bool,
}

/// Number of losses of a file's data that the checks try, for each fault of a disk: during a long
/// fault, several clients lose writes to one file.
const LOSSES_OF_FAULT: u64 = 3;

/// Number of times in the checks for each position of the history: the starts of all events must
/// differ. A call starts at the first of the times of its position.
const TIMES_OF_POSITION: u64 = LOSSES_OF_FAULT;

impl Losses {
    /// The losses without the crashes after which all clients have recovered.
    fn without_recovered_crashes(&self) -> Losses {
        let mut losses = self.clone();
        if losses.clients.is_empty() {
            losses.mds.clear();
            losses.oss.clear();
        }
        losses
    }

    /// The possible losses of data by disk faults. Each takes effect at any time after its fault,
    /// or never.
    fn of_disks<C: Clone>(&self, call: C) -> impl Iterator<Item = (Timed<C>, String)> {
        // No call or other event starts at these times.
        let starts = self.disks.iter().flat_map(|order| {
            let first = TIMES_OF_POSITION * order;
            first..first + LOSSES_OF_FAULT
        });
        starts.map(move |start| {
            let lost = Timed {
                call: call.clone(),
                start,
                end: u64::MAX,
                definite: false,
            };
            (lost, "a disk fails or is full".into())
        })
    }
}

/// The result of the checks.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Each broken promise.
    pub broken: Vec<String>,
    /// Number of checks that gave up because of too many states.
    pub undecided: u32,
}

fn timed<C>(entry: &Entry, call: C, definite: bool) -> Timed<C> {
    Timed {
        call,
        start: TIMES_OF_POSITION * entry.start,
        end: entry.end.saturating_mul(TIMES_OF_POSITION),
        definite: definite && entry.end < u64::MAX,
    }
}

fn instant<C>(order: u64, call: C) -> Timed<C> {
    Timed {
        call,
        start: TIMES_OF_POSITION * order,
        end: TIMES_OF_POSITION * order + 1,
        definite: true,
    }
}

/// Checks all promises. `dirs`: the directories in which the calls work.
pub fn verify(entries: &[Entry], losses: &Losses, dirs: &[Fid]) -> Findings {
    let mut findings = Findings::default();
    let losses = &losses.without_recovered_crashes();
    for entry in entries {
        let problem = match &entry.outcome {
            Some(Outcome::Torn(how)) => format!("a block with two values: {entry}: {how}"),
            Some(Outcome::Wrong(_)) => format!("a wrong answer: {entry}"),
            _ => continue,
        };
        findings.broken.push(problem);
    }
    check_names(entries, losses, &mut findings);
    check_open_files(entries, losses, &mut findings);
    attrs::check_all(entries, losses, dirs, &mut findings);
    let mut blocks: BTreeSet<(Fid, u8)> = BTreeSet::new();
    for entry in entries {
        if let Call::Read(fid, block) = entry.call {
            blocks.insert((fid, block));
        }
    }
    let stored: BTreeSet<Fid> = entries.iter().filter_map(stored_file).collect();
    for (fid, block) in blocks {
        if losses.small_disks && stored.contains(&fid) {
            continue;
        }
        check_block(entries, losses, (fid, block), &mut findings);
    }
    let locked = entries.iter().filter_map(|entry| match entry.call {
        Call::Flock(fid, _) => Some(fid),
        _ => None,
    });
    for fid in locked.collect::<BTreeSet<Fid>>() {
        check_flock(entries, losses, fid, &mut findings);
    }
    findings
}

fn record<S: Spec>(
    what: &str,
    spec: &S,
    initial: S::State,
    mut history: Vec<(Timed<S::Call>, String)>,
    findings: &mut Findings,
) {
    history.sort_by_key(|(timed, _)| timed.start);
    let (timed, texts): (Vec<_>, Vec<_>) = history.into_iter().unzip();
    match check(spec, initial, &timed, STATES_MAX) {
        Verdict::Linear => {}
        Verdict::Undecided => findings.undecided += 1,
        Verdict::Impossible(i) => {
            let end = timed[i].end;
            let before = timed.iter().zip(&texts).filter(|(call, _)| call.start <= end);
            let lines: Vec<&str> = before.map(|(_, text)| text.as_str()).collect();
            let shown = &lines[lines.len().saturating_sub(40)..];
            findings.broken.push(format!(
                "{what}: no order of the calls explains\n    {}\n  the last calls until then:\n    {}",
                texts[i],
                shown.join("\n    ")
            ));
        }
    }
}

fn check_names(entries: &[Entry], losses: &Losses, findings: &mut Findings) {
    let mut history = Vec::new();
    for entry in entries {
        if let Some((fid, links)) = links_seen(entry).filter(|_| !losses.clients.contains(&entry.client)) {
            let read = (names::Call::Links(fid, links), names::Outcome::Done);
            history.push((timed(entry, read, true), entry.to_string()));
        }
        let Call::Name(call) = &entry.call else { continue };
        let outcome = match &entry.outcome {
            Some(Outcome::Name(outcome)) => outcome.clone(),
            _ => names::Outcome::Unclear(wire::Errno::EINTR),
        };
        // Another client may remove a file while this client, which was evicted, opens it.
        let outcome = match outcome {
            names::Outcome::Failed(errno)
                if matches!(call, names::Call::Open(_)) && losses.clients.contains(&entry.client) =>
            {
                names::Outcome::Unclear(errno)
            }
            outcome => outcome,
        };
        let unclear = matches!(outcome, names::Outcome::Unclear(_));
        let reads = matches!(
            call,
            names::Call::Lookup(_) | names::Call::List(_) | names::Call::Sync
        );
        if reads && (unclear || losses.clients.contains(&entry.client)) {
            continue;
        }
        let timed = timed(entry, (call.clone(), outcome), !unclear);
        history.push((timed, entry.to_string()));
    }
    for &order in &losses.mds {
        let crash = (names::Call::Crash, names::Outcome::Done);
        history.push((instant(order, crash), "the metadata server dies".into()));
    }
    let spec = NameSpec {
        crashes: !losses.mds.is_empty(),
    };
    record("names", &spec, names::State::default(), history, findings);
}

/// The file of a store through a mapping.
fn stored_file(entry: &Entry) -> Option<Fid> {
    match entry.call {
        Call::Store(fid, ..) => Some(fid),
        _ => None,
    }
}

/// The number of names that a call found.
fn links_seen(entry: &Entry) -> Option<(Fid, u32)> {
    match (&entry.call, &entry.outcome) {
        (Call::Stat(fid), Some(Outcome::Stat(stat))) if !stat.is_dir => Some((*fid, stat.links)),
        _ => None,
    }
}

/// The file that a call uses, if the call is not on names.
fn file_of(call: &Call) -> Option<Fid> {
    match *call {
        Call::Name(_) | Call::Statfs => None,
        Call::Write(fid, ..)
        | Call::Store(fid, ..)
        | Call::Append(fid, _)
        | Call::Read(fid, _)
        | Call::Allocate(fid, _)
        | Call::Punch(fid, _)
        | Call::Truncate(fid, _)
        | Call::Fsync(fid)
        | Call::Flock(fid, _)
        | Call::Close(fid)
        | Call::Stat(fid)
        | Call::Perm(fid, _)
        | Call::GetAcl(fid)
        | Call::SetTime(fid, _)
        | Call::Xattr(fid, ..) => Some(fid),
    }
}

/// Checks that files exist as long as a client has them open, also after their removal.
fn check_open_files(entries: &[Entry], losses: &Losses, findings: &mut Findings) {
    // A restart of the metadata server forgets open files.
    if !losses.mds.is_empty() {
        return;
    }
    let mut opens: BTreeMap<(ClientId, Fid), u32> = BTreeMap::new();
    for entry in entries {
        let opened = match (&entry.call, &entry.outcome) {
            (
                Call::Name(names::Call::Open(_)),
                Some(Outcome::Name(names::Outcome::Made(fid) | names::Outcome::Found(fid, _))),
            ) => Some(*fid),
            _ => None,
        };
        if let Some(fid) = opened {
            *opens.entry((entry.client, fid)).or_default() += 1;
        }
        let Some(fid) = file_of(&entry.call) else { continue };
        let Some(count) = opens.get_mut(&(entry.client, fid)) else {
            continue;
        };
        let gone = matches!(
            entry.outcome,
            Some(Outcome::Failed(wire::Errno::ENOENT | wire::Errno::ESTALE))
        );
        if gone && *count > 0 && !losses.clients.contains(&entry.client) {
            findings.broken.push(format!("an open file is gone: {entry}"));
        }
        if matches!(entry.call, Call::Close(_)) {
            *count = count.saturating_sub(1);
        }
    }
}

fn check_flock(entries: &[Entry], losses: &Losses, fid: Fid, findings: &mut Findings) {
    let mut history = Vec::new();
    for entry in entries {
        let Call::Flock(file, lock) = entry.call else {
            continue;
        };
        if file != fid {
            continue;
        }
        let (client, lost) = (entry.client, losses.clients.contains(&entry.client));
        let done = entry.outcome == Some(Outcome::Done);
        let call = match (lock, &entry.outcome) {
            (true, Some(Outcome::Failed(wire::Errno::EAGAIN))) if !lost => {
                timed(entry, flocks::Call::Refused(client), true)
            }
            (true, Some(Outcome::Failed(wire::Errno::EAGAIN))) => continue,
            (true, _) => timed(entry, flocks::Call::Lock(client), done),
            (false, _) => timed(entry, flocks::Call::Unlock(client), done),
        };
        if lost && lock {
            let lost = Timed {
                call: flocks::Call::ClientLost(client),
                start: call.start + 1,
                end: u64::MAX,
                definite: false,
            };
            history.push((lost, format!("client {client} is lost")));
        }
        history.push((call, entry.to_string()));
    }
    for &order in &losses.mds {
        let crash = instant(order, flocks::Call::ServerCrash);
        history.push((crash, "the metadata server dies".into()));
    }
    record(&format!("flock of {fid}"), &FlockSpec, None, history, findings);
}

/// The start of each client's last successful fsync of a file.
fn last_syncs<'a>(entries: impl IntoIterator<Item = &'a Entry>, fid: Fid) -> BTreeMap<ClientId, u64> {
    let mut synced: BTreeMap<ClientId, u64> = BTreeMap::new();
    for entry in entries {
        if entry.call == Call::Fsync(fid) && entry.outcome == Some(Outcome::Done) {
            let last = synced.entry(entry.client).or_default();
            *last = entry.start.max(*last);
        }
    }
    synced
}

fn check_block(entries: &[Entry], losses: &Losses, (fid, block): (Fid, u8), findings: &mut Findings) {
    let synced = last_syncs(entries, fid);
    let mut history = Vec::new();
    for entry in entries {
        let (client, done) = (entry.client, entry.outcome == Some(Outcome::Done));
        let lost = losses.clients.contains(&client);
        let safe = !lost || synced.get(&client).is_some_and(|sync| *sync > entry.end);
        let call = match &entry.call {
            Call::Write(file, at, value) if (*file, *at) == (fid, block) => {
                timed(entry, data::Call::Write(client, *value), done && safe)
            }
            Call::Store(file, at, value) if (*file, *at) == (fid, block) => {
                timed(entry, data::Call::Write(client, *value), done && safe)
            }
            Call::Append(file, value) if *file == fid => match entry.outcome {
                Some(Outcome::At(at)) if at != u64::from(block) * BLOCK as u64 => continue,
                Some(Outcome::At(_)) => timed(entry, data::Call::Write(client, *value), safe),
                _ => timed(entry, data::Call::Write(client, *value), false),
            },
            Call::Truncate(file, blocks) if *file == fid && *blocks <= block => {
                timed(entry, data::Call::Cut, done)
            }
            Call::Punch(file, at) if (*file, *at) == (fid, block) => timed(entry, data::Call::Cut, done),
            Call::Fsync(file) if *file == fid && done => timed(entry, data::Call::Fsync(client), true),
            Call::Read(file, at) if (*file, *at) == (fid, block) && !lost => match entry.outcome {
                Some(Outcome::Value(value)) => timed(entry, data::Call::Read(value), true),
                _ => continue,
            },
            _ => continue,
        };
        history.push((call, entry.to_string()));
    }
    for &client in &losses.clients {
        let call = Timed {
            call: data::Call::ClientLost(client),
            start: 0,
            end: u64::MAX,
            definite: false,
        };
        history.push((call, format!("client {client} is lost")));
    }
    // Starts must differ.
    for (n, (call, _)) in history.iter_mut().filter(|(call, _)| call.start == 0).enumerate() {
        call.start = TIMES_OF_POSITION * n as u64 + 1;
    }
    for &order in &losses.oss {
        let crash = instant(order, data::Call::ServerCrash);
        history.push((crash, "an object server dies".into()));
    }
    history.extend(losses.of_disks(data::Call::ServerCrash));
    let what = format!("block {block} of {fid}");
    record(&what, &BlockSpec, data::State::default(), history, findings);
}
