//! Callbacks from the server: answered at once, carried out later.

use super::cache::EVERYTHING;
use super::enqueue::Completion;
use super::{LockClient, LockHandle, Name};
use crate::policy::Policy;
use crate::request;
use rpc::Reply;
use wire::format::bufs;
use wire::{Errno, LdlmRequest, LdlmResId, Message, WireStruct};

impl LockClient {
    /// Handles `LDLM_BL_CALLBACK`, `LDLM_CP_CALLBACK` and `LDLM_GL_CALLBACK`, for
    /// `ImportOwner::callback`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the lock is unknown, which makes the server drop it; `ELDLM_NO_LOCK_DATA` if a
    /// glimpse finds no dirty data.
    pub async fn ast(&self, opc: u32, msg: Message) -> Result<Reply, Errno> {
        let req = request::parse(msg.buf(bufs::DLM_REQ))?;
        let cookie = LockHandle(req.lock_handle[0]);
        match opc {
            wire::LDLM_BL_CALLBACK => self.asked_back(cookie, &req),
            wire::LDLM_CP_CALLBACK => {
                let completion = Completion {
                    desc: req.lock_desc,
                    lvb: msg.bytes(bufs::COMPLETION_LVB),
                    flags: u64::from(req.lock_flags),
                };
                self.completed(cookie, completion)
            }
            wire::LDLM_GL_CALLBACK => self.glimpsed(cookie),
            _ => Err(Errno::ENOTSUPP),
        }
    }

    fn asked_back(&self, cookie: LockHandle, req: &LdlmRequest) -> Result<Reply, Errno> {
        let cancel_bits = req.lock_desc.l_policy_data.cancel_bits();
        let discard = u64::from(req.lock_flags) & wire::LDLM_FL_DISCARD_DATA != 0;
        let res = {
            let mut names = self.name_shard(cookie).lock();
            match names.get_mut(&cookie).ok_or(Errno::EINVAL)? {
                Name::Pending(pending) => {
                    // The reply has not arrived, so the lock's bits are unknown: it is cancelled as
                    // a whole after its first use.
                    pending.must_go = EVERYTHING;
                    pending.discard |= discard;
                    return Ok(Reply::status(0));
                }
                Name::Cached(res) => *res,
            }
        };
        self.must_go(&res, cookie, req.lock_handle[1], cancel_bits, discard)
    }

    fn must_go(
        &self,
        res: &LdlmResId,
        cookie: LockHandle,
        handle: u64,
        cancel_bits: u64,
        discard: bool,
    ) -> Result<Reply, Errno> {
        let mut shard = self.cache_shard(res).lock();
        let lock = shard.find(res, cookie).ok_or(Errno::EINVAL)?;
        if handle != 0 && handle != lock.handle {
            // It names the lock of an earlier attempt, which this client never received.
            return Err(Errno::EINVAL);
        }
        lock.must_go |= match lock.policy {
            Policy::Ibits(held) if held.bits & cancel_bits != 0 => cancel_bits,
            _ => EVERYTHING,
        };
        lock.discard |= discard;
        lock.wanted = true;
        let leave = lock.can_leave();
        lock.leaving |= leave;
        self.no_more_unused(&mut shard, res, cookie);
        drop(shard);
        if leave {
            self.start_giving_back(vec![(*res, cookie)]);
        }
        Ok(Reply::status(0))
    }

    fn completed(&self, cookie: LockHandle, completion: Completion) -> Result<Reply, Errno> {
        let mut names = self.name_shard(cookie).lock();
        match names.get_mut(&cookie).ok_or(Errno::EINVAL)? {
            Name::Pending(pending) => match pending.waiter.take() {
                // If the receiver is gone, dropping the request cancels the lock.
                Some(waiter) => drop(waiter.send(completion)),
                None => pending.completed = Some(completion),
            },
            // A duplicate.
            Name::Cached(_) => {}
        }
        Ok(Reply::status(0))
    }

    fn glimpsed(&self, cookie: LockHandle) -> Result<Reply, Errno> {
        let no_data = Errno(wire::ELDLM_NO_LOCK_DATA as i32);
        let res = match self.name_shard(cookie).lock().get(&cookie).ok_or(Errno::EINVAL)? {
            Name::Pending(_) => return Err(no_data),
            Name::Cached(res) => *res,
        };
        let info = self
            .with_lock(&res, cookie, |l| l.info(&res))
            .ok_or(Errno::EINVAL)?;
        let lvb = self.owner.glimpse(info).ok_or(no_data)?;
        Ok(Reply::new(vec![lvb.to_bytes()]))
    }
}
