//! Working off what transactions queued for an OST: objects to remove or to give to a new owner.
//!
//! The queue is in the store, put there by the transaction itself, so that a crash forgets nothing. Work is sent once
//! its transaction is on disk (a file whose unlink a crash takes back keeps its data) and leaves the queue when what the
//! OST did is on its disk: until then a crash of the OST may undo it. After each new connection everything that is in the
//! queue is done again; doing it twice does no harm.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use osd::Batch;
use rpc::{Request, RpcError};
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use wire::{
    Errno, Fid, LdlmRequest, OBD_MD_FLGID, OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLOBJCOUNT, OBD_MD_FLPROJID,
    OBD_MD_FLUID, OST_DESTROY, OST_REQUEST_PORTAL, OST_SETATTR, Obdo, OstBody, Transno, WireStruct,
};

use super::ost::Ost;
use crate::store::{Work, keys};

/// Entries of the queue looked at together.
const FETCH: usize = 512;
/// Requests in flight.
pub(super) const PARALLEL: usize = 8;
/// Objects that one request destroys at most: they are destroyed in turn, and each may wait for a client.
const TOGETHER: usize = 32;
/// Work that is done and not on the OST's disk; what is more waits in the queue.
const UNCOMMITTED_MAX: usize = 65536;
/// Between two looks at the queue: objects of files removed meanwhile go together, also where the index commits at once.
const GATHER: Duration = Duration::from_millis(10);
/// Before work that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Work that the OST has done, by the OST's transaction.
#[derive(Default)]
struct Done {
    uncommitted: BTreeMap<Transno, Vec<Bytes>>,
    count: usize,
}

/// Works off the queue of one OST, for ever. The queue is in the order of transactions, so that what is done lies
/// behind and is not looked at again.
pub(super) async fn run(ost: Arc<Ost>) {
    let mut queued = ost.store.work();
    let mut committed = ost.store.transactions().watch_committed();
    let mut connection = None;
    let (mut next, mut done) = (Transno::NONE, Done::default());
    loop {
        let now = ost.connected().await;
        if connection.replace(now) != Some(now) {
            // What was done before may be undone.
            (next, done) = (Transno::NONE, Done::default());
        }
        if let Err(e) = done.leave_queue(&ost) {
            tracing::error!("{}: what is done stays in the queue: {e}", ost.name());
        }
        let newest = *queued.borrow_and_update();
        let upto = *committed.borrow_and_update();
        if next <= upto && (next == Transno::NONE || next <= newest) && done.count < UNCOMMITTED_MAX {
            match work_off(&ost, next, upto, &mut done).await {
                Ok(()) => {
                    next = upto.next();
                    sleep(GATHER).await;
                }
                Err(e) => {
                    tracing::debug!("{}: work waits: {e}", ost.name());
                    sleep(RETRY).await;
                }
            }
            continue;
        }
        let changed = tokio::select! {
            changed = committed.changed(), if next <= newest => changed,
            changed = queued.changed(), if next > newest => changed,
            () = sleep(RETRY), if done.count > 0 => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

impl Done {
    /// Takes from the queue what is on the OST's disk by now.
    fn leave_queue(&mut self, ost: &Ost) -> Result<(), Errno> {
        let upto = ost.last_committed();
        let mut batch = Batch::new();
        while let Some(first) = self.uncommitted.first_entry().filter(|e| *e.key() <= upto) {
            for key in first.remove() {
                batch.delete(key);
            }
        }
        self.count -= batch.deletes.len();
        if !batch.is_empty() {
            ost.store.index().apply(batch)?;
        }
        Ok(())
    }
}

/// Does what the transactions `first..=last` queued.
async fn work_off(ost: &Arc<Ost>, first: Transno, last: Transno, done: &mut Done) -> Result<(), Errno> {
    let index = ost.store.index();
    let end = keys::work_from(ost.index(), last.next());
    let mut from = keys::work_from(ost.index(), first);
    loop {
        let rows = index.scan(&from, &end, FETCH)?;
        let Some((seen, _)) = rows.last() else {
            return Ok(());
        };
        from = [seen, &b"\0"[..]].concat();
        let mut sent = JoinSet::new();
        let slots = Arc::new(Semaphore::new(PARALLEL));
        for job in jobs(rows)? {
            let (ost, slots) = (ost.clone(), slots.clone());
            sent.spawn(async move {
                let _slot = slots.acquire_owned().await;
                let did = send(&ost, &job).await;
                (job.keys, did)
            });
        }
        let mut failed = None;
        while let Some(result) = sent.join_next().await {
            match result.map_err(|_| Errno::EIO)? {
                (keys, Ok(transno)) => {
                    done.count += keys.len();
                    done.uncommitted.entry(transno).or_default().extend(keys);
                }
                (_, Err(e)) => failed = Some(e),
            }
        }
        done.leave_queue(ost)?;
        if let Some(e) = failed {
            return Err(e);
        }
    }
}

/// What one request does.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    work: Work,
    /// The first object, and how many there are: more than one only to be destroyed.
    first: Fid,
    count: u32,
    /// The entries of the queue that are done with it.
    keys: Vec<Bytes>,
}

impl Job {
    /// Whether another object can be destroyed along: the next one, or the last one once more.
    fn may_take(&self, object: Fid) -> bool {
        let last = self.first.f_oid + (self.count - 1);
        let known = object.f_oid == last;
        let next = Some(object.f_oid) == last.checked_add(1) && (self.count as usize) < TOGETHER;
        self.work == Work::Destroy && object.f_seq == self.first.f_seq && (known || next)
    }
}

/// Entries of the queue as requests. Objects are given out in order, and files removed together were often made together.
fn jobs(rows: Vec<(Bytes, Bytes)>) -> Result<Vec<Job>, Errno> {
    let mut work = Vec::with_capacity(rows.len());
    for (key, value) in rows {
        let object = keys::work_object(&key).ok_or(Errno::EIO)?;
        work.push((Work::decode(&value)?, object, key));
    }
    // Changes stay in the order in which they were queued.
    work.sort_by_key(|(work, object, _)| (*work == Work::Destroy).then_some(*object));
    let mut jobs: Vec<Job> = Vec::new();
    for (work, object, key) in work {
        let last = jobs.last_mut().filter(|job| job.work == work);
        match last.filter(|job| job.may_take(object)) {
            Some(job) => {
                job.count = object.f_oid - job.first.f_oid + 1;
                job.keys.push(key);
            }
            None => jobs.push(Job {
                work,
                first: object,
                count: 1,
                keys: vec![key],
            }),
        }
    }
    Ok(jobs)
}

/// Has the OST do it; the OST's transaction, or 0 where there was nothing to do.
async fn send(ost: &Ost, job: &Job) -> Result<Transno, Errno> {
    let oa = Obdo {
        o_oi: job.first.into(),
        o_valid: OBD_MD_FLID | OBD_MD_FLGROUP,
        ..Obdo::default()
    };
    let mut req = match job.work {
        Work::Destroy => {
            let o_valid = OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLOBJCOUNT;
            let body = OstBody {
                oa: Obdo {
                    o_valid,
                    o_misc: job.count,
                    ..oa
                },
            };
            Request::new(
                OST_DESTROY,
                vec![body.to_bytes(), LdlmRequest::default().to_bytes()],
            )
        }
        Work::Chown { uid, gid, projid } => {
            let o_valid = oa.o_valid | OBD_MD_FLUID | OBD_MD_FLGID | OBD_MD_FLPROJID;
            let oa = Obdo {
                o_valid,
                o_uid: uid,
                o_gid: gid,
                o_projid: projid,
                ..oa
            };
            Request::new(OST_SETATTR, vec![OstBody { oa }.to_bytes()])
        }
    };
    req.portal = Some(OST_REQUEST_PORTAL);
    match ost.call(req).await {
        Ok(reply) => Ok(Transno(reply.body.pb_transno)),
        // There is no object: it was never written, or the work was done before.
        Err(RpcError::Status(Errno::ENOENT)) => Ok(Transno::NONE),
        // Work that the OST refuses is refused again and again: it must not hold up the rest for ever.
        Err(RpcError::Status(e))
            if !matches!(
                e,
                Errno::EINPROGRESS
                    | Errno::EAGAIN
                    | Errno::ENOMEM
                    | Errno::ENOSPC
                    | Errno::EIO
                    | Errno::EROFS
                    | Errno::ESHUTDOWN
            ) =>
        {
            let Job {
                work, first, count, ..
            } = job;
            tracing::error!(
                "{}: {work:?} of {count} from {first} on is refused: {e}",
                ost.name()
            );
            Ok(Transno::NONE)
        }
        Err(e) => Err(e.errno()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{TOGETHER, jobs};
    use crate::store::{Work, keys};
    use wire::{Fid, OstIndex, Transno};

    fn object(oid: u32) -> Fid {
        Fid::new(0x2_4000_0400, oid, 0)
    }

    #[test]
    fn neighbours_are_destroyed_together_and_each_entry_is_done_once() {
        let chown = Work::Chown {
            uid: 1,
            gid: 2,
            projid: 3,
        };
        let queued = [
            (object(9), Work::Destroy),
            (object(4), chown),
            (object(8), Work::Destroy),
            (object(4), Work::Destroy),
            // Once more, by the look that follows a crash.
            (object(9), Work::Destroy),
            (object(10), Work::Destroy),
            (object(5), chown),
            (Fid::new(0x2_4000_0401, 11, 0), Work::Destroy),
        ];
        let row = |(n, (object, work)): (u64, &(Fid, Work))| {
            (keys::work(OstIndex(0), Transno(n), *object), work.encode())
        };
        let rows: Vec<_> = (1..).zip(&queued).map(row).collect();
        let jobs = jobs(rows.clone()).unwrap();
        let told: Vec<_> = jobs.iter().map(|j| (j.work, j.first, j.count)).collect();
        assert_eq!(
            told,
            [
                (chown, object(4), 1),
                (chown, object(5), 1),
                (Work::Destroy, object(4), 1),
                (Work::Destroy, object(8), 3),
                (Work::Destroy, Fid::new(0x2_4000_0401, 11, 0), 1),
            ]
        );
        let mut done: Vec<_> = jobs.into_iter().flat_map(|j| j.keys).collect();
        done.sort();
        let mut all: Vec<_> = rows.into_iter().map(|(key, _)| key).collect();
        all.sort();
        assert_eq!(done, all);
    }

    #[test]
    fn one_request_destroys_so_many_and_no_more() {
        let rows = |oids: std::ops::RangeInclusive<u32>| -> Vec<_> {
            let row = |oid| {
                (
                    keys::work(OstIndex(0), Transno(7), object(oid)),
                    Work::Destroy.encode(),
                )
            };
            oids.map(row).collect()
        };
        let counts: Vec<u32> = jobs(rows(1..=100)).unwrap().iter().map(|j| j.count).collect();
        assert_eq!(counts, [TOGETHER as u32, TOGETHER as u32, TOGETHER as u32, 4]);
        assert_eq!(jobs(rows(u32::MAX - 1..=u32::MAX)).unwrap().len(), 1);
    }
}
