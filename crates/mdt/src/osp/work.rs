//! Sends the work that transactions queued for an OST: objects to destroy, or to give to a new
//! owner or file.
//!
//! A transaction stores its work in a queue in the store, so a crash loses no work. The MDT sends
//! work only after its transaction is on disk: if a crash undoes an unlink, the file must keep its
//! data. The MDT removes work from the queue when the OST has committed it. After each new
//! connection, the MDT sends the whole queue again; all work is idempotent. The MDT sends the work
//! on one object in the order of the queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use cpt::JoinSet;
use osd::Batch;
use rpc::{Request, RpcError};
use tokio::{sync::Semaphore, time::sleep};
use wire::{
    Errno, Fid, LdlmRequest, OBD_MD_FLFID, OBD_MD_FLGID, OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLOBJCOUNT,
    OBD_MD_FLPROJID, OBD_MD_FLUID, OST_DESTROY, OST_REQUEST_PORTAL, OST_SETATTR, Obdo, OstBody, Transno,
    WireStruct,
};

use super::ost::Ost;
use crate::{
    layout,
    store::{Ownership, Store, Work, keys},
};

/// Maximum number of entries of the queue read at once.
const ENTRIES_PER_READ: usize = 512;
/// Maximum number of requests for work in flight to an OST.
pub(super) const REQUESTS_MAX: usize = 8;
/// Maximum number of objects per destroy request: the OST destroys them one after the other, and
/// may wait for a client at each.
const DESTROY_MAX: usize = 32;
/// The MDT sends no more work while the OST has done, but not committed, this many entries.
const UNCOMMITTED_MAX: usize = 65536;
/// Pause between reads of the queue: files that clients remove in the pause share requests.
const GATHER_PAUSE: Duration = Duration::from_millis(10);
/// Delay before failed work is repeated, and between checks of uncommitted work.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Work that the OST has done, but not committed.
#[derive(Default)]
struct UncommittedWork {
    /// Keys of entries of the queue, by the OST's transaction number.
    by_transno: BTreeMap<Transno, Vec<Bytes>>,
    /// Number of the keys.
    count: usize,
}

/// Sends the queue of one OST, until [`Ost::stop`] aborts the task. The queue has the order of the
/// MDT's transactions: the MDT has sent the work of all transactions before `next`.
pub(super) async fn run(ost: Arc<Ost>) {
    let mut queued = ost.store.watch_work();
    let mut committed = ost.store.transactions().watch_committed();
    let mut connection = None;
    let (mut next, mut uncommitted) = (Transno::NONE, UncommittedWork::default());
    loop {
        let number = ost.wait_connected().await;
        if connection.replace(number) != Some(number) {
            // A restart of the OST may have lost uncommitted work.
            (next, uncommitted) = (Transno::NONE, UncommittedWork::default());
        }
        if let Err(e) = uncommitted.remove_committed(&ost) {
            tracing::error!(
                "{}: cannot remove committed work from the queue, will retry: {e}",
                ost.name()
            );
        }
        let last_queued = *queued.borrow_and_update();
        let last_committed = *committed.borrow_and_update();
        if next <= last_committed
            && (next == Transno::NONE || next <= last_queued)
            && uncommitted.count < UNCOMMITTED_MAX
        {
            match send_work(&ost, next, last_committed, &mut uncommitted).await {
                Ok(()) => {
                    next = last_committed.next();
                    sleep(GATHER_PAUSE).await;
                }
                Err(e) => {
                    tracing::debug!("{}: cannot send queued work, will retry: {e}", ost.name());
                    sleep(RETRY_DELAY).await;
                }
            }
            continue;
        }
        let changed = tokio::select! {
            biased;
            changed = committed.changed(), if next <= last_queued => changed,
            changed = queued.changed(), if next > last_queued => changed,
            () = sleep(RETRY_DELAY), if uncommitted.count > 0 => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

impl UncommittedWork {
    /// Removes from the queue the entries that the OST has committed.
    fn remove_committed(&mut self, ost: &Ost) -> Result<(), Errno> {
        let last_committed = ost.last_committed();
        let mut batch = Batch::new();
        while let Some(first) = self
            .by_transno
            .first_entry()
            .filter(|e| *e.key() <= last_committed)
        {
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

/// Sends the work of the MDT's transactions `first..=last`, and adds it to `uncommitted`. After an
/// error, the OST may have done a part of the work.
async fn send_work(
    ost: &Arc<Ost>,
    first: Transno,
    last: Transno,
    uncommitted: &mut UncommittedWork,
) -> Result<(), Errno> {
    let index = ost.store.index();
    let end = keys::work_from(ost.index(), last.next());
    let mut from = keys::work_from(ost.index(), first);
    loop {
        let rows = index.scan(&from, &end, ENTRIES_PER_READ).await?;
        let Some((last_key, _)) = rows.last() else {
            return Ok(());
        };
        from = [last_key, &b"\0"[..]].concat();
        for round in split_into_rounds(group_into_jobs(rows)?) {
            send_round(ost, round, uncommitted).await?;
        }
    }
}

/// Sends jobs on different objects, several at a time.
async fn send_round(ost: &Arc<Ost>, round: Vec<Job>, uncommitted: &mut UncommittedWork) -> Result<(), Errno> {
    let mut requests = JoinSet::new();
    let slots = Arc::new(Semaphore::new(REQUESTS_MAX));
    for job in round {
        let (ost, slots) = (ost.clone(), slots.clone());
        requests.spawn(async move {
            let _slot = slots.acquire_owned().await;
            let result = send(&ost, &job).await;
            (job.keys, result)
        });
    }
    let mut failed = None;
    while let Some(result) = requests.join_next().await {
        match result.map_err(|_| Errno::EIO)? {
            (keys, Ok(transno)) => {
                uncommitted.count += keys.len();
                uncommitted.by_transno.entry(transno).or_default().extend(keys);
            }
            (_, Err(e)) => failed = Some(e),
        }
    }
    uncommitted.remove_committed(ost)?;
    failed.map_or(Ok(()), Err)
}

/// Splits jobs into rounds, in order. No round has two jobs on one object, so the jobs of a round
/// can run at the same time.
fn split_into_rounds(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let (mut rounds, mut objects) = (Vec::new(), BTreeSet::new());
    let mut round: Vec<Job> = Vec::new();
    for job in jobs {
        let first = job.first;
        let objects_of_job = || (0..job.count).map(move |n| (first.f_seq, first.f_oid + n));
        if objects_of_job().any(|object| objects.contains(&object)) {
            rounds.push(std::mem::take(&mut round));
            objects.clear();
        }
        objects.extend(objects_of_job());
        round.push(job);
    }
    rounds.push(round);
    rounds
}

/// The work of one request.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    work: Work,
    /// The first object, and the number of objects: more than one only for a destroy.
    first: Fid,
    count: u32,
    /// The entries of the queue that the request covers.
    keys: Vec<Bytes>,
}

impl Job {
    /// Whether this is a destroy that can cover `object`, too: the last object of the job again, or
    /// the object with the next id if the job has fewer than [`DESTROY_MAX`] objects.
    fn can_include(&self, object: Fid) -> bool {
        let last = self.first.f_oid + (self.count - 1);
        let is_last = object.f_oid == last;
        let is_next = Some(object.f_oid) == last.checked_add(1) && (self.count as usize) < DESTROY_MAX;
        self.work == Work::Destroy && object.f_seq == self.first.f_seq && (is_last || is_next)
    }
}

/// Groups entries of the queue into requests. Destroys of adjacent objects share a request: objects
/// are allocated in order, and files removed together were often created together.
fn group_into_jobs(rows: Vec<(Bytes, Bytes)>) -> Result<Vec<Job>, Errno> {
    let mut work = Vec::with_capacity(rows.len());
    for (key, value) in rows {
        let object = keys::work_object(&key).ok_or(Errno::EIO)?;
        work.push((Work::decode(&value)?, object, key));
    }
    // Destroys are sorted by object. Changes of owners come first, in the order of the queue.
    work.sort_by_key(|(work, object, _)| (*work == Work::Destroy).then_some(*object));
    let mut jobs: Vec<Job> = Vec::new();
    for (work, object, key) in work {
        let last = jobs.last_mut().filter(|job| job.work == work);
        match last.filter(|job| job.can_include(object)) {
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

/// Whether a file's layout still has this object. If a later swap of layouts moved the object, that
/// swap has queued its own work on the object.
async fn has_object(store: &Store, file: Fid, object: Fid) -> Result<bool, Errno> {
    let Some(inode) = store.find(file).await? else {
        return Ok(false);
    };
    Ok(layout::objects(&inode.lov)?.iter().any(|o| o.fid == object))
}

/// A request that sets an object's owner, group and project.
fn set_owner_request(oa: Obdo, ownership: Ownership) -> Request {
    let oa = Obdo {
        o_valid: oa.o_valid | OBD_MD_FLUID | OBD_MD_FLGID | OBD_MD_FLPROJID,
        o_uid: ownership.uid,
        o_gid: ownership.gid,
        o_projid: ownership.projid,
        ..oa
    };
    Request::new(OST_SETATTR, vec![OstBody { oa }.to_bytes()])
}

/// Sends the request of a job. Returns the OST's transaction number, or [`Transno::NONE`] if the
/// job is finished without a transaction: there was nothing to change, or the OST rejects the work.
async fn send(ost: &Ost, job: &Job) -> Result<Transno, Errno> {
    let mut _adoption_guard = None;
    if let Work::Adopt { file, .. } = job.work {
        _adoption_guard = Some(ost.adoption_lock.read().await);
        if !has_object(&ost.store, file, job.first).await? {
            return Ok(Transno::NONE);
        }
    }
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
        Work::Chown(ownership) => set_owner_request(oa, ownership),
        Work::Adopt {
            file,
            stripe,
            ownership,
        } => {
            let oa = Obdo {
                o_valid: oa.o_valid | OBD_MD_FLFID,
                o_parent_seq: file.f_seq,
                o_parent_oid: file.f_oid,
                o_parent_ver: file.f_ver,
                o_stripe_idx: stripe,
                ..oa
            };
            set_owner_request(oa, ownership)
        }
    };
    req.portal = Some(OST_REQUEST_PORTAL);
    match ost.call(req).await {
        Ok(reply) => Ok(Transno(reply.body.pb_transno)),
        // No such object: it was never written, or the work was done before.
        Err(RpcError::Status(Errno::ENOENT)) => Ok(Transno::NONE),
        // The OST would reject this work each time: drop it, or it would block the rest.
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
                    | Errno::ETIMEDOUT
            ) =>
        {
            let Job {
                work, first, count, ..
            } = job;
            tracing::error!(
                "{}: the OST rejected {work:?} of {count} objects from {first} on, which is dropped: {e}. 'nacre fsck' compares the objects with the files",
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
    use super::{DESTROY_MAX, group_into_jobs, split_into_rounds};
    use crate::store::{Ownership, Work, keys};
    use wire::{Fid, OstIndex, Transno};

    fn object(oid: u32) -> Fid {
        Fid::new(0x2_4000_0400, oid, 0)
    }

    #[test]
    fn adjacent_objects_share_a_destroy_and_each_entry_is_in_one_job() {
        let chown = Work::Chown(Ownership {
            uid: 1,
            gid: 2,
            projid: 3,
        });
        let queued = [
            (object(9), Work::Destroy),
            (object(4), chown),
            (object(8), Work::Destroy),
            (object(4), Work::Destroy),
            // Queued a second time, by the scan after a crash.
            (object(9), Work::Destroy),
            (object(10), Work::Destroy),
            (object(5), chown),
            (Fid::new(0x2_4000_0401, 11, 0), Work::Destroy),
        ];
        let row = |(n, (object, work)): (u64, &(Fid, Work))| {
            (keys::work(OstIndex(0), Transno(n), *object), work.encode())
        };
        let rows: Vec<_> = (1..).zip(&queued).map(row).collect();
        let jobs = group_into_jobs(rows.clone()).unwrap();
        let summary: Vec<_> = jobs.iter().map(|j| (j.work, j.first, j.count)).collect();
        assert_eq!(
            summary,
            [
                (chown, object(4), 1),
                (chown, object(5), 1),
                (Work::Destroy, object(4), 1),
                (Work::Destroy, object(8), 3),
                (Work::Destroy, Fid::new(0x2_4000_0401, 11, 0), 1),
            ]
        );
        let mut covered: Vec<_> = jobs.into_iter().flat_map(|j| j.keys).collect();
        covered.sort();
        let mut all: Vec<_> = rows.into_iter().map(|(key, _)| key).collect();
        all.sort();
        assert_eq!(covered, all);
    }

    #[test]
    fn work_on_one_object_is_done_in_order() {
        let chown = |uid| {
            Work::Chown(Ownership {
                uid,
                gid: 0,
                projid: 0,
            })
        };
        let queued = [
            (object(4), chown(1)),
            (object(5), chown(2)),
            (object(4), chown(3)),
            (object(6), chown(4)),
            (object(5), Work::Destroy),
            (object(6), Work::Destroy),
        ];
        let row = |(n, (object, work)): (u64, &(Fid, Work))| {
            (keys::work(OstIndex(0), Transno(n), *object), work.encode())
        };
        let rounds = split_into_rounds(group_into_jobs((1..).zip(&queued).map(row).collect()).unwrap());
        let summary: Vec<Vec<_>> = rounds
            .iter()
            .map(|round| round.iter().map(|job| (job.work, job.first.f_oid)).collect())
            .collect();
        assert_eq!(
            summary,
            [
                vec![(chown(1), 4), (chown(2), 5)],
                vec![(chown(3), 4), (chown(4), 6)],
                vec![(Work::Destroy, 5)],
            ]
        );
    }

    #[test]
    fn destroy_request_size_is_limited() {
        let rows = |oids: std::ops::RangeInclusive<u32>| -> Vec<_> {
            let row = |oid| {
                (
                    keys::work(OstIndex(0), Transno(7), object(oid)),
                    Work::Destroy.encode(),
                )
            };
            oids.map(row).collect()
        };
        let counts: Vec<u32> = group_into_jobs(rows(1..=100))
            .unwrap()
            .iter()
            .map(|j| j.count)
            .collect();
        assert_eq!(
            counts,
            [DESTROY_MAX as u32, DESTROY_MAX as u32, DESTROY_MAX as u32, 4]
        );
        assert_eq!(group_into_jobs(rows(u32::MAX - 1..=u32::MAX)).unwrap().len(), 1);
    }
}
