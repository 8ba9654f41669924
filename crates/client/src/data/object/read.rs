//! Reads of an object. The client fetches uncached pages once for all waiting readers. It also
//! fetches pages ahead of sequential readers.

use super::{CHECKSUM_ATTEMPTS, Object, lock_range};
use crate::data::brw;
use crate::data::cache::{PAGE_SIZE, Run, rpc_end};
use crate::data::osc::Direction;
use bytes::Bytes;
use ldlm::{LockMode, LockRef};
use rpc::job;
use std::ops::Range;
use std::sync::Arc;
use wire::Errno;

impl Object {
    /// The bytes of `range` up to the object's known size. `lock` covers the range.
    pub(in crate::data) async fn read(
        self: &Arc<Self>,
        range: Range<u64>,
        lock: &LockRef,
    ) -> Result<Vec<Bytes>, Errno> {
        let mut missed = 0;
        loop {
            let io_done = self.io_done.notified();
            tokio::pin!(io_done);
            io_done.as_mut().enable();
            let gap = {
                let mut state = self.state.lock();
                if !lock.is_valid() {
                    return Err(Errno::EIO);
                }
                let end = range.end.min(state.attr.size.max(range.start));
                let runs = state.cache.read(range.start..end);
                let gap = runs.iter().find_map(|run| match run {
                    Run::Gap(gap) => Some(gap.clone()),
                    Run::Data(_) => None,
                });
                let Some(gap) = gap else {
                    state.cache.touch(range.start..end);
                    drop(state);
                    self.osc.stats().read_ahead.add_read(&(range.start..end), missed);
                    return Ok(runs.into_iter().filter_map(cached_bytes).collect());
                };
                if state.is_fetching(&gap) {
                    None
                } else {
                    // Fetches whole pages, so that small reads nearby find their bytes in the
                    // cache, but no byte that the lock does not cover: the client would not drop
                    // it when another client changes it.
                    let locked = lock_range(lock.policy());
                    let start = (gap.start / PAGE_SIZE * PAGE_SIZE).max(locked.start);
                    let end = (gap.end.div_ceil(PAGE_SIZE) * PAGE_SIZE).min(locked.end);
                    let gap = start..rpc_end(&(start..end), self.osc.brw_params().brw_bytes_max);
                    state.begin_fetch(gap.clone());
                    missed += gap.end - gap.start;
                    Some(gap)
                }
            };
            match gap {
                Some(gap) => self.fetch(gap).await?,
                None => io_done.await,
            }
        }
    }

    /// Starts to read ahead the parts of `range` that are neither cached nor in flight, if a lock
    /// covers `range`.
    pub(in crate::data) fn prefetch(self: &Arc<Self>, range: Range<u64>) {
        let Some(lock) = self.find_lock(LockMode::Pr, &range) else {
            return;
        };
        let gaps = {
            let mut state = self.state.lock();
            let end = range.end.min(state.attr.size);
            if range.start >= end || !lock.is_valid() {
                return;
            }
            let mut gaps = Vec::new();
            for run in state.cache.read(range.start..end) {
                if let Run::Gap(gap) = run
                    && !state.is_fetching(&gap)
                {
                    let max = self.osc.brw_params().brw_bytes_max;
                    let mut position = gap.start;
                    while position < gap.end {
                        let part = position..rpc_end(&(position..gap.end), max);
                        position = part.end;
                        state.begin_fetch(part.clone());
                        gaps.push(part);
                    }
                }
            }
            gaps
        };
        for gap in gaps {
            self.osc.stats().read_ahead.add_read_ahead(&gap);
            let object = self.clone();
            let lock = lock.clone();
            self.osc.spawn(job::inherit(async move {
                let _lock = lock;
                // The read that needs the bytes repeats the request and reports the error.
                let _ = object.fetch(gap).await;
            }));
        }
    }

    /// Reads `range` from the server into the cache. The caller has added it to `fetches`.
    async fn fetch(self: &Arc<Self>, range: Range<u64>) -> Result<(), Errno> {
        let _reading = FetchGuard {
            object: self,
            range: range.clone(),
        };
        let data = self.read_rpc(&range).await?;
        let mut state = self.state.lock();
        if state.fetches.iter().any(|f| f.range == range && f.stale) {
            // The reader that waits for this fetch repeats it.
            return Ok(());
        }
        let mut position = range.start;
        for piece in data {
            let next = position + piece.len() as u64;
            state.cache.fill(position, piece);
            position = next;
        }
        // If a short reply ends below the known size, the rest is a hole.
        let end = range.end.min(state.attr.size);
        if position < end {
            state
                .cache
                .fill(position, Bytes::from(vec![0; (end - position) as usize]));
        }
        drop(state);
        self.account();
        Ok(())
    }

    /// Sends an OST_READ; repeats it after a wrong checksum.
    async fn read_rpc(self: &Arc<Self>, range: &Range<u64>) -> Result<Vec<Bytes>, Errno> {
        let params = self.osc.brw_params();
        for _ in 0..CHECKSUM_ATTEMPTS {
            let _timer = self.osc.time_request(Direction::Read, [range]);
            let request = brw::read_request(self.id(), range, &params, self.osc.budget().report());
            let reply = self.call(request).await?;
            let read = brw::parse_read_reply(&reply, range)?;
            self.osc.budget().finish_rpc(0, read.granted);
            if !read.corrupted {
                return Ok(read.data);
            }
            tracing::warn!(ost = self.osc.name(), object = ?self.id().oi, ?range, "checksum mismatch in a read reply; retrying");
        }
        Err(Errno::EIO)
    }

    /// Reads `range` from the server without the cache (O_DIRECT), up to the object's known size:
    /// after the end a server may return zeros for the rest of a block. The caller holds a lock on
    /// the range.
    pub(in crate::data) async fn read_direct(
        self: &Arc<Self>,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, Errno> {
        self.flush(range.clone()).await;
        let end = range.end.min(self.state.lock().attr.size);
        let mut data = Vec::new();
        let mut position = range.start;
        while position < end {
            let part = position..rpc_end(&(position..end), self.osc.brw_params().brw_bytes_max);
            let received = self.read_rpc(&part).await?;
            let bytes: u64 = received.iter().map(|d| d.len() as u64).sum();
            data.extend(received);
            position += bytes;
            if position < part.end {
                break;
            }
        }
        Ok(data)
    }
}

/// Removes a range from `fetches` when its fetch ends or is dropped.
struct FetchGuard<'a> {
    object: &'a Object,
    range: Range<u64>,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        self.object.state.lock().fetches.retain(|f| f.range != self.range);
        self.object.io_done.notify_waiters();
    }
}

fn cached_bytes(run: Run) -> Option<Bytes> {
    match run {
        Run::Data(bytes) => Some(bytes),
        Run::Gap(_) => None,
    }
}
