//! Lists directories, with attributes (readdirplus) and without.

use crate::convert::{errno, file_attr, file_type};
use crate::state::State;
use client::{Attr, Cred, DirHandle, DirItem, FoundFile};
use fuser::{INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::JoinSet;
use wire::{Errno, Fid};

/// Largest number of names to look up together.
const LOOKUP_BATCH: usize = 128;

/// Directory entries, each with the attributes of its file or the error of the lookup; `None` for
/// `.` and `..`.
pub(crate) type Entries = Vec<(DirItem, Option<Result<FoundFile, Errno>>)>;

/// Replies with as many names and types as fit.
pub(crate) fn reply_names(state: &State, dir: &DirHandle, items: &[DirItem], mut reply: ReplyDirectory) {
    let add = |item: &&DirItem| {
        let e = &item.entry;
        let ino = INodeNo(state.nodes.shown_ino(e.fid));
        let file_type = file_type(u32::from(e.mode.unwrap_or(0)));
        !reply.add(ino, item.next, file_type, OsStr::from_bytes(&e.name))
    };
    let added = items.iter().take_while(add).count();
    dir.advance(items, added);
    reply.ok();
}

fn is_dot(item: &DirItem) -> bool {
    matches!(&item.entry.name[..], b"." | b"..")
}

/// Looks up some entries together; `None` for `.` and `..`. To avoid a deadlock, this function
/// holds no result's lock while it waits for another lookup: that lookup may wait for a client that
/// needs the lock. It releases each result's lock at once. At the end it takes again the locks that
/// are free.
async fn lookup_batch(
    state: &Arc<State>,
    cred: &Cred,
    dir: Fid,
    items: &[DirItem],
) -> Vec<Option<Result<FoundFile, Errno>>> {
    let names: Vec<&[u8]> = items
        .iter()
        .filter(|i| !is_dot(i))
        .map(|i| &i.entry.name[..])
        .collect();
    state.client.lookup_batch(cred, dir, &names).await;
    let mut found: Vec<_> = items.iter().map(|_| None).collect();
    let mut tasks = JoinSet::new();
    for (i, item) in items.iter().enumerate().filter(|(_, item)| !is_dot(item)) {
        let (task_state, cred, name) = (state.clone(), cred.clone(), item.entry.name.clone());
        let lookup = async move {
            let result = task_state.client.lookup(&cred, dir, &name).await;
            (i, result.map(FoundFile::without_locks))
        };
        tasks.spawn_on(lookup, state.runtime.tokio());
    }
    while let Some(lookup) = tasks.join_next().await {
        if let Ok((i, result)) = lookup {
            found[i] = Some(result);
        }
    }
    for (item, found) in items.iter().zip(&mut found) {
        if let Some(Ok(found)) = found
            && let Some(Ok(locked)) = poll_once(state.client.lookup(cred, dir, &item.entry.name))
        {
            *found = locked;
        }
    }
    found
}

/// The result of a future that is ready at once; `None`: the future would wait.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Some entries from `offset` on, with the attributes of their files. Empty at the end of the
/// directory.
pub(crate) async fn lookup_entries(
    state: &Arc<State>,
    cred: &Cred,
    dir: &DirHandle,
    mut offset: u64,
) -> Result<Entries, Errno> {
    loop {
        let items = state.client.readdir(dir, offset).await?;
        let Some(last) = items.last() else {
            return Ok(Vec::new());
        };
        for batch in items.chunks(LOOKUP_BATCH) {
            let found = lookup_batch(state, cred, dir.fid, batch).await;
            // An empty reply would mean the end of the directory.
            if found.iter().all(was_removed) {
                dir.advance(batch, batch.len());
                continue;
            }
            return Ok(batch.iter().cloned().zip(found).collect());
        }
        offset = last.next;
    }
}

/// Whether a file was removed since its name was listed.
fn was_removed(found: &Option<Result<FoundFile, Errno>>) -> bool {
    matches!(found, Some(Err(Errno::ENOENT | Errno::ESTALE)))
}

/// Replies with as many names and attributes as fit, without removed files. Stops before an entry
/// whose lookup failed with another error; if that is the first entry, replies with the error. The
/// kernel gets a reference to each file except `.` and `..`.
pub(crate) fn reply_entries(
    state: &State,
    ino: INodeNo,
    dir: &DirHandle,
    entries: Entries,
    mut reply: ReplyDirectoryPlus,
) {
    let (items, found): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
    let (mut consumed, mut has_entry) = (0, false);
    for (item, found) in items.iter().zip(&found) {
        let stop = match found {
            None => add_dot(state, item, &mut reply),
            Some(Ok(found)) => add(state, ino, item, found, &mut reply),
            removed if was_removed(removed) => {
                consumed += 1;
                continue;
            }
            Some(Err(e)) if !has_entry => return reply.error(errno(*e)),
            Some(Err(_)) => true,
        };
        if stop {
            break;
        }
        (consumed, has_entry) = (consumed + 1, true);
    }
    dir.advance(&items, consumed);
    reply.ok();
    // The kernel has the reply, so the locks that cover the attributes may now be revoked.
    drop(found);
}

/// Adds `.` or `..`. Returns true if the entry does not fit into the reply.
fn add_dot(state: &State, item: &DirItem, reply: &mut ReplyDirectoryPlus) -> bool {
    let ino = state.nodes.shown_ino(item.entry.fid);
    let attr = Attr {
        mode: u32::from(item.entry.mode.unwrap_or(0)),
        ..Attr::default()
    };
    let name = OsStr::from_bytes(&item.entry.name);
    let fid = item.entry.fid;
    reply.add(
        INodeNo(ino),
        item.next,
        name,
        &Duration::ZERO,
        &file_attr(ino, &attr),
        state.nodes.generation(fid),
    )
}

/// Adds an entry with its attributes. Returns true if the entry does not fit into the reply.
fn add(
    state: &State,
    dir: INodeNo,
    item: &DirItem,
    found: &FoundFile,
    reply: &mut ReplyDirectoryPlus,
) -> bool {
    let node = state.entry_attr(dir, found);
    let ino = node.attr.ino;
    let full = reply.add(
        ino,
        item.next,
        OsStr::from_bytes(&item.entry.name),
        &node.attr_ttl.min(node.name_ttl),
        &node.attr,
        state.nodes.generation(found.attr.fid),
    );
    if full {
        state.nodes.forget(ino.0, 1);
    }
    full
}
