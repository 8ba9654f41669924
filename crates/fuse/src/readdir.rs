//! Directories listed, with and without attributes.

use crate::convert::{errno, file_attr, kind};
use crate::state::State;
use client::{Attr, Cred, DirHandle, DirItem, Found};
use fuser::{INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::JoinSet;
use wire::{Errno, Fid};

/// Names whose attributes are asked for at once.
const AHEAD: usize = 128;

/// Entries of a directory, each with its file's attributes or why they are not known; none for `.` and `..`.
pub(crate) type Entries = Vec<(DirItem, Option<Result<Found, Errno>>)>;

/// Answers with names and types, as many as there is room for.
pub(crate) fn plain(state: &State, dir: &DirHandle, items: &[DirItem], mut reply: ReplyDirectory) {
    let has_room = |item: &&DirItem| {
        let e = &item.entry;
        let ino = INodeNo(state.nodes.number(e.fid));
        let kind = kind(u32::from(e.mode.unwrap_or(0)));
        !reply.add(ino, item.next, kind, OsStr::from_bytes(&e.name))
    };
    let taken = items.iter().take_while(has_room).count();
    dir.took(items, taken);
    reply.ok();
}

fn is_dot(item: &DirItem) -> bool {
    matches!(&item.entry.name[..], b"." | b"..")
}

/// The attributes of some entries, asked for together. What is held for one answer must not wait for another: somebody's
/// change of the first may be in the way of the second. So they are let go, and taken again as far as that needs no wait.
async fn look_up(
    state: &Arc<State>,
    cred: &Cred,
    dir: Fid,
    items: &[DirItem],
) -> Vec<Option<Result<Found, Errno>>> {
    let names: Vec<&[u8]> = items
        .iter()
        .filter(|i| !is_dot(i))
        .map(|i| &i.entry.name[..])
        .collect();
    state.client.look_ahead(cred, dir, &names).await;
    let mut found: Vec<_> = items.iter().map(|_| None).collect();
    let mut tasks = JoinSet::new();
    for (i, item) in items.iter().enumerate().filter(|(_, item)| !is_dot(item)) {
        let (asker, cred, name) = (state.clone(), cred.clone(), item.entry.name.clone());
        let ask = async move {
            let asked = asker.client.lookup(&cred, dir, &name).await;
            (i, asked.map(Found::let_go))
        };
        tasks.spawn_on(ask, &state.runtime);
    }
    while let Some(done) = tasks.join_next().await {
        if let Ok((i, result)) = done {
            found[i] = Some(result);
        }
    }
    for (item, found) in items.iter().zip(&mut found) {
        if let Some(Ok(found)) = found
            && let Some(Ok(again)) = at_once(state.client.lookup(cred, dir, &item.entry.name))
        {
            *found = again;
        }
    }
    found
}

/// What a future comes to, if it does not wait.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Some entries from `place` on, with the attributes of their files.
pub(crate) async fn found(
    state: &Arc<State>,
    cred: &Cred,
    dir: &DirHandle,
    place: u64,
) -> Result<Entries, Errno> {
    let mut at = place;
    loop {
        let items = state.client.readdir(dir, at).await?;
        let Some(last) = items.last() else {
            return Ok(Vec::new());
        };
        for batch in items.chunks(AHEAD) {
            let found = look_up(state, cred, dir.fid, batch).await;
            // An empty answer would be the directory's end.
            if found.iter().all(is_gone) {
                dir.took(batch, batch.len());
                continue;
            }
            return Ok(batch.iter().cloned().zip(found).collect());
        }
        at = last.next;
    }
}

/// Whether a name is gone since it was listed.
fn is_gone(found: &Option<Result<Found, Errno>>) -> bool {
    matches!(found, Some(Err(Errno::ENOENT | Errno::ESTALE)))
}

/// Answers with names and attributes, as many as there is room for: the kernel gets a reference to each file but `.` and `..`.
pub(crate) fn plus(
    state: &State,
    ino: INodeNo,
    dir: &DirHandle,
    entries: Entries,
    mut reply: ReplyDirectoryPlus,
) {
    let (items, found): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
    let (mut taken, mut given) = (0, false);
    for (item, found) in items.iter().zip(&found) {
        let full = match found {
            None => add_dot(state, item, &mut reply),
            Some(Ok(found)) => add(state, ino, item, found, &mut reply),
            gone if is_gone(gone) => {
                taken += 1;
                continue;
            }
            Some(Err(e)) if !given => return reply.error(errno(*e)),
            Some(Err(_)) => true,
        };
        if full {
            break;
        }
        (taken, given) = (taken + 1, true);
    }
    dir.took(&items, taken);
    reply.ok();
    // The kernel has it now: what was said to stay true may be called back.
    drop(found);
}

fn add_dot(state: &State, item: &DirItem, reply: &mut ReplyDirectoryPlus) -> bool {
    let ino = state.nodes.number(item.entry.fid);
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

fn add(state: &State, dir: INodeNo, item: &DirItem, found: &Found, reply: &mut ReplyDirectoryPlus) -> bool {
    let node = state.node(dir, found);
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
