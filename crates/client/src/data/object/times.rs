//! Times that programs set.
//!
//! The metadata target sets the times first, then the objects. If this client alone uses an object
//! and has unwritten data of it, the data carries the times. Until the target has them, they count
//! as unwritten data of the whole object: the write-back and each flush send them too.

use super::{Object, State};
use crate::data::brw;
use bytes::Bytes;
use ldlm::{LockMode, LockRef};
use rpc::{Request, RpcError};
use std::ops::Range;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, HasTimes, OBD_MD_FLATIME, OBD_MD_FLCTIME, OBD_MD_FLMTIME, OBD_OBJECT_EOF, OST_SETATTR, Obdo,
    OstBody, Precision, Time, Times, WireStruct,
};

/// A change of times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetTimes {
    /// The access time; `None`: it stays.
    pub atime: Option<Time>,
    /// The modification time; `None`: it stays.
    pub mtime: Option<Time>,
    /// The time of the change.
    pub ctime: Time,
    /// Whether the metadata target knows no change of the file with a later time.
    pub is_latest: bool,
    /// Whether this client created the file, and no client had changed its attributes before.
    pub is_first: bool,
}

/// The times that a program has set and that the target may lack.
#[derive(Debug, Default)]
pub(super) struct UnsentTimes {
    atime: bool,
    mtime: bool,
    /// Whether an OST_SETATTR with the times is in flight.
    sending: bool,
}

impl UnsentTimes {
    /// Whether the target may lack times.
    fn any(&self) -> bool {
        self.atime || self.mtime
    }

    /// Forgets the times: the target no longer needs them.
    fn clear(&mut self) {
        (self.atime, self.mtime) = (false, false);
    }
}

/// The times in a write RPC.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenTimes {
    pub(super) times: Times,
    pub(super) sets_atime: bool,
    /// Whether no other write is in flight. Another write could arrive later with older times.
    is_alone: bool,
}

impl WrittenTimes {
    /// The times of a change of the data, without an access time.
    pub(super) fn of_change(times: Times) -> WrittenTimes {
        WrittenTimes {
            times,
            sets_atime: false,
            is_alone: false,
        }
    }
}

/// The modification and change time in a request, and the access time if `atime` is set.
fn put_times(oa: &mut Obdo, times: Times, (atime, mtime): (bool, bool)) {
    // Sets ctime only with mtime: an object's ctime tells the age of its mtime.
    if mtime {
        oa.o_valid |= OBD_MD_FLMTIME | OBD_MD_FLCTIME;
    }
    if atime {
        oa.o_valid |= OBD_MD_FLATIME;
    }
    oa.set_times(Times {
        mtime: if mtime { times.mtime } else { Time::default() },
        atime: if atime { times.atime } else { Time::default() },
        ctime: times.ctime,
    });
}

impl State {
    /// Whether times are on the way to the target outside of a write. Writes wait meanwhile,
    /// because they must reach the target after these times.
    pub(super) fn is_sending_times(&self) -> bool {
        self.unsent_times.sending
    }

    /// Whether the target may lack times that a program has set.
    pub(super) fn has_unsent_times(&self) -> bool {
        self.unsent_times.any()
    }

    /// Forgets times that the target lacks, after the loss of the lock or of the object.
    pub(super) fn forget_unsent_times(&mut self) {
        self.unsent_times.clear();
    }

    /// The times for a write RPC. The caller has not yet taken the RPC's data from the cache.
    pub(super) fn times_to_write(&self) -> WrittenTimes {
        WrittenTimes {
            times: self.attr.times,
            sets_atime: self.unsent_times.atime,
            is_alone: !self.cache.is_writing(0..u64::MAX),
        }
    }

    /// Records the object's times after a write RPC with the times `sent`.
    pub(super) fn record_written_times(&mut self, sent: WrittenTimes, found: Times) {
        let own = self.attr.times;
        let is_same = |time: fn(&Times) -> Time| [found, own].iter().all(|t| time(t) == time(&sent.times));
        if sent.is_alone && is_same(|t| t.mtime) {
            self.unsent_times.mtime = false;
        }
        if sent.is_alone && sent.sets_atime && is_same(|t| t.atime) {
            self.unsent_times.atime = false;
        }
    }
}

/// Whether a flush of this range also sends times.
pub(super) fn includes_times(range: &Range<u64>) -> bool {
    range.start == 0 && range.end == OBD_OBJECT_EOF
}

impl Object {
    /// Waits until no write RPC is in flight.
    async fn wait_for_writes(&self) {
        loop {
            let io_done = self.io_done.notified();
            tokio::pin!(io_done);
            io_done.as_mut().enable();
            if !self.is_writing() {
                return;
            }
            io_done.await;
        }
    }

    /// Whether [`Object::set_times`] requires a lock on the whole object: it does if mtime or atime
    /// is in the past (before `ctime`). Other clients that hold locks know a later time and would
    /// keep it; the lock on the whole object revokes their locks.
    pub(in crate::data) fn set_times_needs_lock(&self, set: &SetTimes) -> bool {
        let precision = self.osc.precision();
        let mut times = [set.mtime, set.atime].into_iter().flatten();
        times.any(|t| precision.of(t) < precision.of(set.ctime))
    }

    /// Sets the given times. Unwritten data carries them if possible. Otherwise waits for in-flight
    /// writes, which would set other times, and sends the times. `lock`: a PW lock on the whole
    /// object, if a time is in the past.
    pub(in crate::data) async fn set_times(
        self: &Arc<Self>,
        set: &SetTimes,
        lock: Option<&LockRef>,
    ) -> Result<(), Errno> {
        let precision = self.osc.precision();
        let (mtime, atime) = (
            set.mtime.map(|t| precision.of(t)),
            set.atime.map(|t| precision.of(t)),
        );
        let ctime = precision.of(set.ctime);
        let evictions = lock.map(|lock| self.eviction_epoch(lock)).transpose()?;
        let lock_of_all = self.lock_to_defer_times(set);
        {
            let mut state = self.state.lock();
            // The later of two access times counts, so an earlier one cannot wait for the data.
            let may_defer = atime.is_none() || set.is_first && state.attr.times.atime.is_none();
            let times = &mut state.attr.times;
            times.atime = atime.unwrap_or(times.atime);
            if let Some(mtime) = mtime {
                times.mtime = mtime;
                times.ctime = times.ctime.max(ctime);
            }
            let is_pending = state.cache.unwritten_bytes() > 0 || state.has_unsent_times();
            if may_defer && is_pending && lock_of_all.as_ref().is_some_and(LockRef::is_valid) {
                state.unsent_times.atime |= atime.is_some();
                state.unsent_times.mtime |= mtime.is_some();
                return Ok(());
            }
        }
        drop(lock_of_all);
        self.wait_for_writes().await;
        let mut oa = brw::obdo(self.id());
        let times = Times {
            mtime: mtime.unwrap_or_default(),
            atime: atime.unwrap_or_default(),
            ctime,
        };
        put_times(&mut oa, times, (atime.is_some(), mtime.is_some()));
        self.send_times(oa, evictions).await.map_err(Errno::from)
    }

    /// The lock under which unwritten data may carry these times: no other client can know or
    /// change the object's times meanwhile. `None`: the times must be sent now.
    fn lock_to_defer_times(&self, set: &SetTimes) -> Option<LockRef> {
        // In whole seconds, the change could seem as old as a change by another client.
        let may_defer = set.is_latest
            && self.osc.precision() == Precision::Nanoseconds
            && !self.osc.requires_capabilities();
        may_defer.then(|| self.find_lock(LockMode::Pw, &(0..OBD_OBJECT_EOF)))?
    }

    /// Sends an OST_SETATTR with times.
    async fn send_times(self: &Arc<Self>, oa: Obdo, evictions: Option<u64>) -> Result<(), RpcError> {
        let set = Request {
            evictions,
            ..Request::new(OST_SETATTR, vec![OstBody { oa }.to_bytes(), Bytes::new()])
        };
        let reply = self.call(set).await?;
        if let Ok(OstBody { oa }) = reply.get(bufs::OST_BODY)
            && oa.o_valid & OBD_MD_FLCTIME != 0
        {
            // A client with a faster clock may have changed the object. This client's later changes
            // must not have an earlier time.
            let times = &mut self.state.lock().attr.times;
            times.ctime = times.ctime.max(oa.times().at(self.osc.precision()).ctime);
        }
        Ok(())
    }

    /// Sends the times that the target lacks, unless unwritten data will carry them.
    pub(super) async fn send_unsent_times(self: &Arc<Self>) {
        loop {
            let (oa, sent, evictions) = {
                let mut state = self.state.lock();
                let is_idle = state.cache.unwritten_bytes() == 0 && !state.unsent_times.sending;
                if !state.unsent_times.any() || !is_idle {
                    return;
                }
                state.unsent_times.sending = true;
                let mut oa = brw::obdo(self.id());
                let which = (state.unsent_times.atime, state.unsent_times.mtime);
                put_times(&mut oa, state.attr.times, which);
                (oa, state.attr.times, self.osc.evictions())
            };
            let object = self.clone();
            let send = async move {
                let result = object.send_times(oa, Some(evictions)).await;
                object.end_sending_times(sent, result);
            };
            cpt::detach_on_drop(send).await;
        }
    }

    fn end_sending_times(&self, sent: Times, result: Result<(), RpcError>) {
        {
            let mut state = self.state.lock();
            let own = state.attr.times;
            state.unsent_times.sending = false;
            if result.is_err() || (own.atime, own.mtime) == (sent.atime, sent.mtime) {
                state.unsent_times.clear();
            }
        }
        self.io_done.notify_waiters();
        match result {
            // The eviction has recorded the lost data. A removed object needs no times.
            Ok(()) | Err(RpcError::Evicted(_)) => {}
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => {
                let (ost, file) = (self.osc.name(), self.file());
                tracing::warn!(ost, object = ?self.id().oi, %file, "the OST did not take the times that a program set: {error}");
            }
        }
    }
}
