//! Writes of an object: into the cache while grant and budget last, from there to the server in
//! RPCs as large as possible; directly to the server otherwise.

use super::{CHECKSUM_ATTEMPTS, Object};
use crate::data::brw::{self, ObjectId, WriteArgs};
use crate::data::cache::{Writeback, rpc_end};
use bytes::Bytes;
use ldlm::LockRef;
use rpc::{Request, RpcError};
use std::ops::Range;
use std::sync::Arc;
use tokio::time::Instant;
use wire::format::bufs;
use wire::{
    Errno, OBD_MD_FLBLOCKS, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_GETATTR, OST_SYNC, OstBody, Times, WireStruct,
};

/// Largest number of ranges in one write RPC (the request must fit the server's buffer).
const RANGES_MAX: usize = 256;

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
            let need = self.state.lock().cache.reservation(range.clone());
            if need > 0
                && !self
                    .osc
                    .budget()
                    .reserve(need, || self.osc.start_write_back())
                    .await
            {
                return self.write_through(range, data, lock).await;
            }
            let now = self.osc.now();
            let mut s = self.state.lock();
            let needed_now = s.cache.reservation(range.clone());
            if needed_now > need {
                drop(s);
                self.osc.budget().unreserve(need);
                continue;
            }
            if !lock.is_valid() {
                drop(s);
                self.osc.budget().unreserve(need);
                return Err(Errno::EIO);
            }
            s.cache.write(offset, data);
            s.attr.size = s.attr.size.max(range.end);
            s.changed(now);
            let newly_dirty = s.dirty_since.is_none();
            if newly_dirty {
                s.dirty_since = Some(Instant::now());
            }
            drop(s);
            self.osc.budget().unreserve(need - needed_now);
            self.osc.note_write(self, newly_dirty, range.end - range.start);
            return Ok(range.end - range.start);
        }
    }

    /// Sends `data` at once and waits: without a reservation, or for O_DIRECT. Returns the number
    /// of written bytes ([`Object::write_now`]). The write runs to its end even if the caller stops
    /// waiting, and keeps its lock and write slot until then.
    pub(in crate::data) async fn write_through(
        self: &Arc<Self>,
        range: Range<u64>,
        data: Bytes,
        lock: &LockRef,
    ) -> Result<u64, Errno> {
        let epoch = self.eviction_epoch(lock)?;
        self.flush(range.clone()).await;
        let slot = self.osc.write_slot().await;
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
            match self
                .write_rpc(self.id(), &[(position..end, vec![part])], false, times, epoch)
                .await
            {
                // New grant lets later writes stay in the cache.
                Ok(granted) => self.osc.budget().written(0, granted),
                Err(e) if position == range.start => return Err(e),
                Err(_) => break,
            }
            position = end;
        }
        let range = range.start..position;
        let mut s = self.state.lock();
        let freed = s.replaced_at_server(range.clone());
        if lock.is_valid() {
            s.attr.size = s.attr.size.max(range.end);
            s.changed(now);
        }
        drop(s);
        self.osc.budget().unreserve(freed);
        Ok(range.end - range.start)
    }

    /// Sends an OST_WRITE at eviction count `epoch` ([`Object::eviction_epoch`]); repeats it after
    /// a wrong checksum. `object` names the file. `granted`: the bytes are reserved. Returns the
    /// new grant in bytes.
    async fn write_rpc(
        self: &Arc<Self>,
        object: ObjectId,
        ranges: &[(Range<u64>, Vec<Bytes>)],
        granted: bool,
        times: Times,
        epoch: u64,
    ) -> Result<u64, Errno> {
        let params = self.osc.brw_params();
        for _ in 0..CHECKSUM_ATTEMPTS {
            let grant = self.osc.budget().report();
            let args = WriteArgs {
                object,
                ranges,
                granted,
                times,
                grant,
            };
            let reply = self.call_under(epoch, brw::write_request(&args, &params)).await?;
            let written = brw::write_reply(&reply, &args, &params)?;
            if !written.corrupted {
                if let Some(blocks) = written.blocks {
                    self.state.lock().attr.blocks = blocks;
                }
                return Ok(written.granted);
            }
            self.osc.budget().written(0, written.granted);
            tracing::warn!(ost = self.osc.name(), object = ?self.id().oi, "wrong checksum of a write");
        }
        Err(Errno::EIO)
    }

    /// Sends data taken from the cache at eviction count `epoch`, and marks it as written or lost.
    async fn write_back(self: Arc<Self>, batch: Writeback, epoch: u64) {
        let times = self.state.lock().attr.times;
        let (id, result) = loop {
            let id = self.id();
            let result = self
                .write_rpc(id, &batch.ranges, batch.reserved > 0, times, epoch)
                .await;
            // The object moved to another file during the request, with its data.
            if result.is_ok() || self.file() == id.parent {
                break (id, result);
            }
        };
        {
            let mut s = self.state.lock();
            if let Err(error) = result {
                self.osc.record_loss(id.parent, error);
            }
            for (range, _) in &batch.ranges {
                s.changed_at_server(range);
            }
            s.cache
                .written(batch.ranges.iter().map(|(r, _)| r), result.is_err());
        }
        if let Err(error) = result {
            self.log_loss(id.parent, batch.bytes, error);
            self.size_after_loss().await;
        }
        self.osc.budget().written(batch.reserved, result.unwrap_or(0));
        self.changed.notify_waiters();
        self.account();
    }

    /// Sets the size after a loss of data: the larger of the server's size and the end of the data
    /// still to be written.
    async fn size_after_loss(self: &Arc<Self>) {
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
        let mut s = self.state.lock();
        // Data written during the request may be in neither value.
        let pending_end = pending_end.max(s.cache.unwritten_end());
        if !s.locks.is_empty() {
            s.attr.size = pending_end.max(server.oa.o_size);
            s.attr.blocks = server.oa.o_blocks;
        }
        drop(s);
        let object = self.clone();
        self.osc
            .spawn(async move { object.osc.forget_in_kernel(object.file()).await });
    }

    /// Starts to write the dirty data of `range` that is not in flight. `full_only`: only while the
    /// object has enough dirty data for a whole RPC.
    pub(in crate::data) async fn start_writing(self: &Arc<Self>, range: Range<u64>, full_only: bool) {
        loop {
            let slot = self.osc.write_slot().await;
            let bytes_max = self.osc.brw_params().brw_bytes_max;
            let (batch, epoch) = {
                let mut s = self.state.lock();
                if full_only && s.cache.dirty_bytes() < bytes_max {
                    return;
                }
                let batch = s.cache.take_dirty(range.clone(), bytes_max, RANGES_MAX);
                if !s.cache.is_dirty(0..u64::MAX) {
                    s.dirty_since = None;
                }
                // Data that is in the cache now is covered by current locks.
                (batch, self.osc.evictions())
            };
            let Some(batch) = batch else { return };
            let object = self.clone();
            self.osc.spawn(async move {
                object.write_back(batch, epoch).await;
                drop(slot);
            });
        }
    }

    /// Writes the dirty data of `range` and waits until nothing of it is in flight.
    pub(in crate::data) async fn flush(self: &Arc<Self>, range: Range<u64>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (dirty, writing) = {
                let s = self.state.lock();
                (s.cache.is_dirty(range.clone()), s.cache.is_writing(range.clone()))
            };
            if dirty {
                self.start_writing(range.clone(), false).await;
            }
            if !dirty && !writing {
                return;
            }
            if writing || self.state.lock().cache.is_writing(range.clone()) {
                changed.await;
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
                // The eviction records the lost data. The rest must still be synced.
                Err(RpcError::Evicted(_)) => continue,
                Err(e) => Err(e.errno()),
            };
        }
    }
}
