//! The checks of attributes. Each attribute of each file is checked on its own.

use std::collections::{BTreeMap, BTreeSet};

use wire::{Errno, Fid};

use super::{Findings, Losses, TIMES_OF_POSITION, instant, last_syncs, record, timed};
use crate::attrs::{
    Perm, PermCall, PermSpec, SizeCall, SizeSpec, TimeCall, TimeSpec, XattrCall, XattrOutcome, XattrSpec,
};
use crate::data::ClientId;
use crate::history::{Call, Entry, Outcome};
use crate::linear::{Spec, Timed};
use crate::names::{self, Kind};
use crate::register::{Event, Recovered, Saved};
use crate::workload::BLOCK;

/// Size of a page, bytes: the kernel writes whole ones.
const PAGE: u64 = 4096;

/// Errors after which a change of attributes has no effect.
const DEFINITE: [Errno; 5] = [
    Errno::EPERM,
    Errno::ENOENT,
    Errno::ESTALE,
    Errno::ENOSPC,
    Errno::EOPNOTSUPP,
];

/// A history of an object, with each call as text.
type Calls<C> = Vec<(Timed<Event<C>>, String)>;

/// One file's calls, in the order of their starts.
struct File<'a> {
    fid: Fid,
    kind: Kind,
    entries: Vec<&'a Entry>,
}

/// Checks the attributes of all files.
pub(super) fn check_all(entries: &[Entry], losses: &Losses, dirs: &[Fid], findings: &mut Findings) {
    let mut kinds: BTreeMap<Fid, Kind> = dirs.iter().map(|dir| (*dir, Kind::Dir)).collect();
    let mut used: BTreeMap<Fid, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        if let Some(Outcome::Name(names::Outcome::Found(fid, kind))) = &entry.outcome {
            kinds.insert(*fid, *kind);
        }
        if let Some(fid) = super::file_of(&entry.call) {
            used.entry(fid).or_default().push(entry);
        }
    }
    let synced = |entry: &&Entry| entry.call == Call::Name(names::Call::Sync);
    let syncs: Vec<&Entry> = entries.iter().filter(synced).collect();
    for (fid, entries) in used {
        let file = File {
            fid,
            kind: kinds.get(&fid).copied().unwrap_or(Kind::File),
            entries,
        };
        let of_mdt = |calls| finish_mdt(&file, losses, &syncs, calls);
        let crashes = !losses.mds.is_empty();
        let what = format!("owner, mode and ACL of {fid}");
        let (spec, initial) = (PermSpec, initial_perm(file.kind));
        check(
            &what,
            spec,
            initial,
            of_mdt(perm_calls(&file, losses)),
            crashes,
            findings,
        );
        let numbers = file.entries.iter().filter_map(|entry| match entry.call {
            Call::Xattr(_, number, _) => Some(number),
            _ => None,
        });
        for number in numbers.collect::<BTreeSet<u8>>() {
            let what = format!("extended attribute {number} of {fid}");
            let mut calls = of_mdt_xattr(&file, losses, &syncs, number);
            calls.sort_by_key(|(call, _)| call.start);
            check(&what, XattrSpec, None, calls, crashes, findings);
        }
        if file.kind == Kind::Dir {
            continue;
        }
        let crashes =
            crashes || !(losses.oss.is_empty() && losses.clients.is_empty() && losses.disks.is_empty());
        let calls = finish_data(losses, time_calls(&file, losses));
        let what = format!("modification time of {fid}");
        check(&what, TimeSpec, None, calls, crashes, findings);
        if file.kind == Kind::File {
            let calls = finish_data(losses, size_calls(&file, losses));
            check(&format!("size of {fid}"), SizeSpec, 0, calls, crashes, findings);
        }
    }
}

fn check<S: Spec>(
    what: &str,
    spec: S,
    initial: S::State,
    calls: Calls<S::Call>,
    crashes: bool,
    findings: &mut Findings,
) {
    let spec = Recovered { spec, crashes };
    record(what, &spec, Saved::new(initial), calls, findings);
}

fn initial_perm(kind: Kind) -> Perm {
    let mode = match kind {
        Kind::Dir => 0o755,
        Kind::Symlink(_) => 0o777,
        Kind::File | Kind::Fifo => 0o644,
    };
    Perm {
        mode,
        owner: (0, 0),
        acl: None,
    }
}

/// Whether a call certainly had no effect: it failed with one of [`DEFINITE`].
fn is_refused(entry: &Entry) -> bool {
    matches!(entry.outcome, Some(Outcome::Failed(errno)) if DEFINITE.contains(&errno))
}

fn call<C>(entry: &Entry, call: C, definite: bool) -> (Timed<Event<C>>, String) {
    (timed(entry, Event::Call(call), definite), entry.to_string())
}

/// Adds the syncs and crashes of the metadata server to a history.
fn finish_mdt<C>(file: &File<'_>, losses: &Losses, syncs: &[&Entry], mut calls: Calls<C>) -> Calls<C> {
    if losses.mds.is_empty() {
        return calls;
    }
    let own = file
        .entries
        .iter()
        .filter(|entry| matches!(entry.call, Call::Fsync(_)));
    for entry in syncs.iter().chain(own) {
        let is_done = matches!(
            entry.outcome,
            Some(Outcome::Done | Outcome::Name(names::Outcome::Done))
        );
        if is_done {
            calls.push((timed(entry, Event::Sync, true), entry.to_string()));
        }
    }
    for &order in &losses.mds {
        calls.push((instant(order, Event::Crash), "the metadata server dies".into()));
    }
    calls
}

/// Adds all crashes to a history.
fn finish_data<C: Clone>(losses: &Losses, mut calls: Calls<C>) -> Calls<C> {
    for &order in losses.mds.iter().chain(&losses.oss) {
        calls.push((instant(order, Event::Crash), "a server dies".into()));
    }
    calls.extend(losses.of_disks(Event::Crash));
    for (n, client) in losses.clients.iter().enumerate() {
        let lost = Timed {
            call: Event::Crash,
            // No call or other event starts at this time.
            start: TIMES_OF_POSITION * n as u64 + 1,
            end: u64::MAX,
            definite: false,
        };
        calls.push((lost, format!("client {client} is lost")));
    }
    calls
}

fn perm_calls(file: &File<'_>, losses: &Losses) -> Calls<PermCall> {
    let mut calls = Vec::new();
    for entry in file.entries.iter().filter(|entry| !is_refused(entry)) {
        let lost = losses.clients.contains(&entry.client);
        match (&entry.call, &entry.outcome) {
            (Call::Perm(_, PermCall::RemoveAcl), Some(Outcome::Acl(None))) => {
                calls.push(call(entry, PermCall::GetAcl(None), true));
            }
            (Call::Perm(_, change), outcome) => {
                calls.push(call(entry, *change, *outcome == Some(Outcome::Done)));
            }
            (_, Some(Outcome::Stat(stat))) if !lost => {
                calls.push(call(entry, PermCall::Stat(stat.mode, stat.owner), true));
            }
            (_, Some(Outcome::Acl(acl))) if !lost => calls.push(call(entry, PermCall::GetAcl(*acl), true)),
            _ => {}
        }
    }
    calls
}

fn of_mdt_xattr(
    file: &File<'_>,
    losses: &Losses,
    syncs: &[&Entry],
    number: u8,
) -> Calls<(XattrCall, XattrOutcome)> {
    let mut calls = Vec::new();
    for entry in file.entries.iter().filter(|entry| !is_refused(entry)) {
        let Call::Xattr(_, of, xattr) = entry.call else {
            continue;
        };
        let reads = matches!(xattr, XattrCall::Get | XattrCall::List);
        if reads && losses.clients.contains(&entry.client)
            || !matches!(xattr, XattrCall::List) && of != number
        {
            continue;
        }
        match &entry.outcome {
            Some(Outcome::Xattr(outcome)) => calls.push(call(entry, (xattr, *outcome), true)),
            Some(Outcome::Xattrs(listed)) => {
                let outcome = XattrOutcome::Listed(listed.contains(&number));
                calls.push(call(entry, (xattr, outcome), true));
            }
            _ if reads => {}
            _ => calls.push(call(entry, (xattr, XattrOutcome::Done), false)),
        }
    }
    finish_mdt(file, losses, syncs, calls)
}

/// Whether a client's acknowledged write may be lost with the client.
fn is_unsafe(losses: &Losses, synced: &BTreeMap<ClientId, u64>, entry: &Entry) -> bool {
    losses.clients.contains(&entry.client) && !is_synced(synced, entry)
}

/// Whether the client called `fsync` after the call, with success.
fn is_synced(synced: &BTreeMap<ClientId, u64>, entry: &Entry) -> bool {
    synced.get(&entry.client).is_some_and(|sync| *sync >= entry.end)
}

fn time_calls(file: &File<'_>, losses: &Losses) -> Calls<TimeCall> {
    let synced = last_syncs(file.entries.iter().copied(), file.fid);
    let mut calls = Vec::new();
    for entry in &file.entries {
        let safe = !is_unsafe(losses, &synced, entry);
        let done = matches!(entry.outcome, Some(Outcome::Done | Outcome::At(_)));
        match (&entry.call, &entry.outcome) {
            (Call::SetTime(_, time), _) if !is_refused(entry) => {
                calls.push(call(entry, TimeCall::Set(*time), done));
            }
            (Call::Stat(_), Some(Outcome::Stat(stat))) if !losses.clients.contains(&entry.client) => {
                calls.push(call(entry, TimeCall::Seen(stat.mtime), true));
            }
            (Call::Write(..) | Call::Append(..) | Call::Truncate(..) | Call::Punch(..), _) => {
                calls.push(call(entry, TimeCall::Touch, done && safe));
            }
            // It is unknown whether and when these change the time: the kernel writes a stored page
            // later.
            (Call::Store(..) | Call::Allocate(..), _) => calls.push(call(entry, TimeCall::Touch, false)),
            _ => {}
        }
    }
    calls
}

fn size_calls(file: &File<'_>, losses: &Losses) -> Calls<SizeCall> {
    let synced = last_syncs(file.entries.iter().copied(), file.fid);
    let block = BLOCK as u64;
    let mut calls = Vec::new();
    for entry in &file.entries {
        let safe = !is_unsafe(losses, &synced, entry);
        let done = entry.outcome == Some(Outcome::Done);
        match (&entry.call, &entry.outcome) {
            (Call::Write(_, at, _), _) => {
                let end = (u64::from(*at) + 1) * block;
                // A disk fault may lose this write but not a later one that ends before it.
                let stays = safe && (losses.disks.is_empty() || is_synced(&synced, entry));
                calls.push(call(entry, SizeCall::Reach(end), done && stays));
            }
            (Call::Store(_, at, _), _) => {
                let end = (u64::from(*at) * block / PAGE + 1) * PAGE;
                calls.push(call(entry, SizeCall::Reach(end), false));
            }
            (Call::Append(..), Some(Outcome::At(at))) => {
                calls.push(call(entry, SizeCall::Append(Some(*at), block), safe));
            }
            (Call::Append(..), _) => calls.push(call(entry, SizeCall::Append(None, block), false)),
            (Call::Truncate(_, blocks), _) => {
                calls.push(call(entry, SizeCall::Cut(u64::from(*blocks) * block), done));
            }
            // The last close of a removed file may destroy its objects during the call.
            (Call::Stat(_), Some(Outcome::Stat(stat))) if (stat.links, stat.size) == (0, 0) => {}
            (Call::Stat(_), Some(Outcome::Stat(stat))) if !losses.clients.contains(&entry.client) => {
                calls.push(call(entry, SizeCall::Seen(stat.size), true));
            }
            _ => {}
        }
    }
    calls
}
