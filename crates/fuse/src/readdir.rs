//! Directories listed, with and without attributes.

use crate::convert::{errno, file_attr, generation, kind};
use crate::state::{State, ttl};
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

/// Names and types.
pub(crate) async fn plain(state: &State, dir: &DirHandle, place: u64, mut reply: ReplyDirectory) {
    let mut at = place;
    let mut any = false;
    loop {
        let items = match state.client.readdir(dir, at).await {
            Ok(items) => items,
            Err(e) if !any => return reply.error(errno(e)),
            Err(_) => break,
        };
        if items.is_empty() {
            break;
        }
        let mut taken = 0;
        for item in &items {
            let e = &item.entry;
            let ino = INodeNo(state.nodes.number(e.fid));
            let mode = u32::from(e.mode.unwrap_or(0));
            if reply.add(ino, item.next, kind(mode), OsStr::from_bytes(&e.name)) {
                break;
            }
            taken += 1;
        }
        dir.took(&items, taken);
        any |= taken > 0;
        if taken < items.len() {
            break;
        }
        at = items[taken - 1].next;
    }
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

/// Names with attributes: the kernel gets a reference to each file but `.` and `..`.
pub(crate) async fn plus(
    state: &Arc<State>,
    cred: &Cred,
    dir: &DirHandle,
    place: u64,
    mut reply: ReplyDirectoryPlus,
) {
    let mut at = place;
    loop {
        let items = match state.client.readdir(dir, at).await {
            Ok(items) => items,
            Err(e) => return reply.error(errno(e)),
        };
        let Some(last) = items.last() else { break };
        for batch in items.chunks(AHEAD) {
            let found = look_up(state, cred, dir.fid, batch).await;
            let (mut taken, mut given, mut full) = (0, false, false);
            for (item, found) in batch.iter().zip(&found) {
                full = match found {
                    None => add_dot(state, item, &mut reply),
                    Some(Ok(found)) => add(state, item, found, &mut reply),
                    // Gone since it was listed.
                    Some(Err(Errno::ENOENT | Errno::ESTALE)) => {
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
            dir.took(batch, taken);
            // An empty answer would be the directory's end.
            if given || full {
                reply.ok();
                // The kernel has it now: what was said to stay true may be called back.
                drop(found);
                return;
            }
        }
        at = last.next;
    }
    reply.ok();
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
        generation(fid),
    )
}

fn add(state: &State, item: &DirItem, found: &Found, reply: &mut ReplyDirectoryPlus) -> bool {
    let fid = found.attr.fid;
    let ino = state.nodes.reference(fid);
    let ttl = ttl(found.attr_cached && found.name_cached);
    let attr = file_attr(ino, &found.attr);
    let full = reply.add(
        INodeNo(ino),
        item.next,
        OsStr::from_bytes(&item.entry.name),
        &ttl,
        &attr,
        generation(fid),
    );
    if full {
        state.nodes.forget(ino, 1);
    }
    full
}
