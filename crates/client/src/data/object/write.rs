//! Writes of an object. While grant and budget last, a write goes into the cache, and from there to
//! the server in RPCs as large as possible. Otherwise it goes directly to the server.

use super::times::{WrittenTimes, includes_times};
use super::{CHECKSUM_ATTEMPTS, Object};
use crate::data::brw::{self, ObjectId, WriteArgs};
use crate::data::cache::{Writeback, rpc_end};
use crate::data::osc::Direction;
use bytes::Bytes;
use ldlm::LockRef;
use rpc::job::{self, JobId};
use rpc::{Request, RpcError};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use wire::format::bufs;
use wire::{
    Errno, OBD_MD_FLBLOCKS, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_GETATTR, OST_SYNC, OstBody, Times, WireStruct,
};

/// Largest number of ranges in one write RPC (the request must fit the server's buffer).
const RANGES_MAX: usize = 256;

/// Data taken from the cache for one RPC.
struct TakenData {
    batch: Writeback,
    /// The object's times.
    times: WrittenTimes,
    /// The eviction count ([`Object::eviction_epoch`]).
    epoch: u64,
    /// The job of the last writer.
    writer: JobId,
    /// Whether no other dirty data is left.
    is_last: bool,
    slot: Option<OwnedSemaphorePermit>,
}

impl Object {
    /// Writes `data` to the cache, or to the server if no grant or budget can be reserved. Returns
    /// the number of written bytes. `lock` is a PW lock on the range.
    pub(in crate::data) async fn write(
        self: &Arc<Self>,
        offset: u64,
        data: Bytes,
        lock: &LockRef,
    ) -> Result<u64, Errno> {
        let range = offset..offset + data.len() as u64;
        loop {
            let reserved = self.state.lock().cache.reservation(range.clone());
            if reserved > 0 && !self.osc.budget().reserve(reserved, || self.dirty.wake()).await {
                return self.write_through(range, data, lock).await;
            }
            let now = self.osc.now();
            let mut state = self.state.lock();
            let needed = state.cache.reservation(range.clone());
            if needed > reserved {
                drop(state);
                self.osc.budget().unreserve(reserved);
                continue;
            }
            if !lock.is_valid() {
                drop(state);
                self.osc.budget().unreserve(reserved);
                return Err(Errno::EIO);
            }
            state.cache.write(offset, data);
            state.attr.size = state.attr.size.max(range.end);
            state.set_change_times(now);
            state.job = job::current();
            let newly_dirty = state.dirty_since.is_none();
            if newly_dirty {
                state.dirty_since = Some(Instant::now());
            }
            drop(state);
            self.osc.budget().unreserve(reserved - needed);
            self.note_write(newly_dirty, range.end - range.start);
            return Ok(range.end - range.start);
        }
    }

    /// Sends `data` at once and waits for the reply: for a write without a reservation, or for
    /// O_DIRECT. Returns the number of written bytes ([`Object::write_now`]). The write runs to its
    /// end even if the caller stops waiting, and keeps its lock and write slot until then.
    pub(in crate::data) async fn write_through(
        self: &Arc<Self>,
        range: Range<u64>,
        data: Bytes,
        lock: &LockRef,
    ) -> Result<u64, Errno> {
        let epoch = self.eviction_epoch(lock)?;
        self.flush(range.clone()).await;
        let slot = self.osc.acquire_write_slot().await;
        let (object, lock) = (self.clone(), lock.clone());
        let write = async move {
            let written = object.write_now(range, data, &lock, epoch).await;
            drop(slot);
            written
        };
        cpt::detach_on_drop(write).await
    }

    /// Sends `data` in as many RPCs as necessary, without a reservation. Returns the number of
    /// bytes written before an RPC failed; fails if the first RPC fails.
    async fn write_now(
        self: &Arc<Self>,
        range: Range<u64>,
        data: Bytes,
        lock: &LockRef,
        epoch: u64,
    ) -> Result<u64, Errno> {
        let now = self.osc.now().max(self.state.lock().attr.times.ctime);
        let times = Times {
            mtime: now,
            ctime: now,
            ..Times::default()
        };
        let mut position = range.start;
        let mut rest = data;
        while !rest.is_empty() {
            let end = rpc_end(&(position..range.end), self.osc.brw_params().brw_bytes_max);
            let part = rest.split_to((end - position) as usize);
            let times = WrittenTimes::of_change(times);
            match self
                .write_rpc(self.id(), &[(position..end, vec![part])], false, times, epoch)
                .await
            {
                // With new grant, later writes stay in the cache.
                Ok(granted) => self.osc.budget().finish_rpc(0, granted),
                Err(e) if position == range.start => return Err(e),
                Err(_) => break,
            }
            position = end;
        }
        let range = range.start..position;
        let mut state = self.state.lock();
        let freed = state.discard_changed_at_server(range.clone());
        if lock.is_valid() {
            state.attr.size = state.attr.size.max(range.end);
            state.set_change_times(now);
        }
        drop(state);
        self.osc.budget().unreserve(freed);
        Ok(range.end - range.start)
    }

    /// Sends an OST_WRITE at eviction count `epoch` ([`Object::eviction_epoch`]); repeats it after
    /// a wrong checksum. `object` has the file to report to the server. `granted`: the client has
    /// reserved the bytes from the grant. Returns the new grant in bytes.
    async fn write_rpc(
        self: &Arc<Self>,
        object: ObjectId,
        ranges: &[(Range<u64>, Vec<Bytes>)],
        granted: bool,
        times: WrittenTimes,
        epoch: u64,
    ) -> Result<u64, Errno> {
        let params = self.osc.brw_params();
        for _ in 0..CHECKSUM_ATTEMPTS {
            let grant = self.osc.budget().report();
            let args = WriteArgs {
                object,
                ranges,
                granted,
                times: times.times,
                sets_atime: times.sets_atime,
                grant,
            };
            let _timer = self
                .osc
                .time_request(Direction::Write, ranges.iter().map(|(range, _)| range));
            let reply = self.call_under(epoch, brw::write_request(&args, &params)).await?;
            let written = brw::parse_write_reply(&reply, &args, &params)?;
            if !written.corrupted {
                let mut state = self.state.lock();
                if let Some(blocks) = written.blocks {
                    state.attr.blocks = blocks;
                }
                if let Some(found) = written.times {
                    state.record_written_times(times, found);
                }
                return Ok(written.granted);
            }
            self.osc.budget().finish_rpc(0, written.granted);
            tracing::warn!(ost = self.osc.name(), object = ?self.id().oi, "checksum mismatch in a write; resending");
        }
        Err(Errno::EIO)
    }

    /// Sends data taken from the cache, and marks it as written or lost. Then sends times that no
    /// data carries.
    async fn write_back(self: Arc<Self>, taken: TakenData) {
        let TakenData {
            batch,
            times,
            epoch,
            slot,
            ..
        } = taken;
        let (id, result) = loop {
            let id = self.id();
            let result = self
                .write_rpc(id, &batch.ranges, batch.reserved > 0, times, epoch)
                .await;
            // After an error, sends again if the object moved to another file during the request.
            if result.is_ok() || self.file() == id.parent {
                break (id, result);
            }
        };
        {
            let mut state = self.state.lock();
            if let Err(error) = result {
                self.osc.record_loss(id.parent, error);
            }
            for (range, _) in &batch.ranges {
                state.mark_changed_at_server(range);
            }
            state
                .cache
                .finish_write(batch.ranges.iter().map(|(r, _)| r), result.is_err());
        }
        if let Err(error) = result {
            self.log_loss(id.parent, batch.bytes, error);
            self.update_size_after_loss().await;
        }
        self.osc.budget().finish_rpc(batch.reserved, result.unwrap_or(0));
        drop(slot);
        self.io_done.notify_waiters();
        self.account();
        self.send_unsent_times().await;
    }

    /// Sets the size after a loss of data: the larger of the server's size and the end of the
    /// remaining unwritten data.
    async fn update_size_after_loss(self: &Arc<Self>) {
        let pending_end = self.state.lock().cache.unwritten_end();
        let body = OstBody {
            oa: brw::obdo(self.id()),
        };
        let reply = self.call(Request::new(OST_GETATTR, vec![body.to_bytes()])).await;
        let Ok(server) = reply
            .map_err(|e| e.errno())
            .and_then(|r| r.get::<OstBody>(bufs::OST_BODY))
        else {
            return;
        };
        let mut state = self.state.lock();
        // A program may have written more data during the request.
        let pending_end = pending_end.max(state.cache.unwritten_end());
        if !state.locks.is_empty() {
            state.attr.size = pending_end.max(server.oa.o_size);
            state.attr.blocks = server.oa.o_blocks;
        }
        drop(state);
        let object = self.clone();
        self.osc
            .spawn(async move { object.osc.invalidate_in_kernel(object.file()).await });
    }

    /// Takes dirty data of `range` that is not in flight, for one RPC. `full_only`: only while the
    /// object has enough dirty data for a whole RPC. `None`: nothing to take now.
    async fn take_dirty(&self, range: &Range<u64>, full_only: bool) -> Option<TakenData> {
        let slot = self.osc.acquire_write_slot().await;
        let bytes_max = self.osc.brw_params().brw_bytes_max;
        let mut state = self.state.lock();
        if state.is_sending_times() || full_only && state.cache.dirty_bytes() < bytes_max {
            return None;
        }
        let times = state.times_to_write();
        let batch = state.cache.take_dirty(range.clone(), bytes_max, RANGES_MAX);
        if !state.cache.is_dirty(0..u64::MAX) {
            state.dirty_since = None;
        }
        Some(TakenData {
            batch: batch?,
            times,
            // Current locks cover the data that is in the cache now.
            epoch: self.osc.evictions(),
            writer: state.job,
            is_last: !state.cache.is_dirty(range.clone()),
            slot,
        })
    }

    /// Starts to send the dirty data of `range` that is not in flight. `full_only`: only while the
    /// object has enough dirty data for a whole RPC.
    pub(in crate::data) async fn start_writing(self: &Arc<Self>, range: Range<u64>, full_only: bool) {
        while let Some(taken) = self.take_dirty(&range, full_only).await {
            self.osc
                .spawn(job::run_for(taken.writer, self.clone().write_back(taken)));
        }
    }

    /// Writes back the dirty data of `range`, and waits until no data of the range is in flight. A
    /// flush of the whole object also sends the times that the target lacks. The calling thread
    /// starts to send the last data, so that a small file needs no other thread.
    pub(in crate::data) async fn flush(self: &Arc<Self>, range: Range<u64>) {
        loop {
            let io_done = self.io_done.notified();
            tokio::pin!(io_done);
            io_done.as_mut().enable();
            let is_dirty = || self.state.lock().cache.is_dirty(range.clone());
            while is_dirty()
                && let Some(taken) = self.take_dirty(&range, false).await
            {
                let (is_last, writer) = (taken.is_last, taken.writer);
                let write = job::run_for(writer, self.clone().write_back(taken));
                match is_last {
                    true => cpt::detach_on_drop(write).await,
                    false => self.osc.spawn(write),
                }
            }
            let (is_in_flight, is_done, lacks_times) = {
                let state = self.state.lock();
                let is_writing = state.cache.is_writing(range.clone());
                (
                    is_writing || state.is_sending_times(),
                    !is_writing && !state.cache.is_dirty(range.clone()),
                    includes_times(&range) && state.has_unsent_times(),
                )
            };
            match (is_done, lacks_times) {
                (true, false) => return,
                _ if is_in_flight => io_done.await,
                (true, true) => self.send_unsent_times().await,
                // A program has just written again.
                (false, _) => {}
            }
        }
    }

    /// Writes dirty data and waits until all earlier writes of any client are on the server's disk.
    pub(in crate::data) async fn sync(self: &Arc<Self>) -> Result<(), Errno> {
        self.flush(0..u64::MAX).await;
        let mut oa = brw::obdo(self.id());
        oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
        oa.o_size = 0;
        oa.o_blocks = OBD_OBJECT_EOF;
        let sync = Request::new(OST_SYNC, vec![OstBody { oa }.to_bytes(), Bytes::new()]);
        loop {
            return match self.call(sync.clone()).await {
                Ok(_) => Ok(()),
                // The eviction has recorded the lost data. The other data must still be synced.
                Err(RpcError::Evicted(_)) => continue,
                Err(e) => Err(e.errno()),
            };
        }
    }
}
