//! The HSM state of a file, stored as `trusted.hsm`. Nacre archives no files, but Lustre clients
//! query and set the state in ordinary operation.

use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, HS_ARCHIVED, HS_DIRTY, HS_EXISTS, HS_LOST, HS_RELEASED, HSM_FLAGS_MASK, HSM_USER_MASK,
    HSS_ARCHIVE_ID, HSS_CLEARMASK, HSS_SETMASK, HsmAttrs, HsmStateSet, HsmUserState, MdtBody, WireStruct,
    XATTR_NAME_HSM,
};

use crate::{
    cred::Cred,
    locks::XATTR,
    namespace::xattr::{SetxattrArgs, getxattr, setxattr},
    target::{HandlerResult, Mdt, reply},
};

impl Mdt {
    /// Executes `MDS_HSM_STATE_GET`.
    pub(crate) async fn hsm_state(&self, req: &ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let state = self.hsm_attrs(&body).await?;
        let user_state = HsmUserState {
            hus_states: state.hsm_flags,
            hus_archive_id: state.hsm_arch_id as u32,
            ..HsmUserState::default()
        };
        Ok(reply(3, [MdtBody::default().to_bytes(), user_state.to_bytes()]))
    }

    /// Executes `MDS_HSM_STATE_SET`. `EPERM` if the user does not own the file.
    pub(crate) async fn set_hsm_state(&self, req: &ServerRequest) -> HandlerResult {
        let body: MdtBody = req.get(bufs::MDT_BODY)?;
        let set: HsmStateSet = req.get(bufs::HSM_STATE_SET)?;
        self.check_writable(req)?;
        let (fid, cred) = (body.mbo_fid1, self.cred_of_body(req, &body));
        self.store.inode(fid).await?;
        let mut locks = self.request_locks(req);
        locks.lock_inode(fid, XATTR).await?;
        if !cred.owns(&self.store.inode(fid).await?) {
            return Err(Errno::EPERM);
        }
        let state = new_state(self.hsm_attrs(&body).await?, &set, cred.is_admin())?;
        let change = setxattr(
            self.request_store(req),
            &Cred::root(),
            &SetxattrArgs {
                fid,
                name: XATTR_NAME_HSM.as_bytes(),
                value: Some(state.to_bytes()),
                flags: 0,
                time: self.clock.now(),
            },
        )
        .await?;
        Ok(Reply::default().with_transno(change.transno))
    }

    /// The stored state of a file, or the default state if none is stored.
    async fn hsm_attrs(&self, body: &MdtBody) -> Result<HsmAttrs, Errno> {
        match getxattr(
            &self.store,
            &Cred::root(),
            body.mbo_fid1,
            XATTR_NAME_HSM.as_bytes(),
        )
        .await
        {
            Ok(value) => HsmAttrs::from_bytes(&value).map_err(|_| Errno::EIO),
            Err(Errno::ENODATA) => Ok(HsmAttrs::default()),
            Err(e) => Err(e),
        }
    }
}

/// The state after a change. `EINVAL` for unknown flags and for an inconsistent state: dirty
/// without a copy in the archive (`HS_EXISTS`), released or lost without a complete copy
/// (`HS_ARCHIVED`), released and dirty. `EPERM` for flags that only an administrator may change.
fn new_state(old: HsmAttrs, set: &HsmStateSet, is_admin: bool) -> Result<HsmAttrs, Errno> {
    let masks = set.hss_setmask | set.hss_clearmask;
    if masks & !u64::from(HSM_FLAGS_MASK) != 0 {
        return Err(Errno::EINVAL);
    }
    if masks & !u64::from(HSM_USER_MASK) != 0 && !is_admin {
        return Err(Errno::EPERM);
    }
    let mut new = old;
    if set.hss_valid & HSS_SETMASK != 0 {
        new.hsm_flags |= set.hss_setmask as u32;
    }
    if set.hss_valid & HSS_CLEARMASK != 0 {
        new.hsm_flags &= !(set.hss_clearmask as u32);
    }
    let has = |flags: u32| new.hsm_flags & flags == flags;
    if set.hss_valid & HSS_ARCHIVE_ID != 0 && has(HS_EXISTS) {
        new.hsm_arch_id = set.hss_archive_id.into();
    }
    let is_inconsistent = (has(HS_DIRTY) && !has(HS_EXISTS))
        || has(HS_RELEASED | HS_DIRTY)
        || (has(HS_RELEASED) && !has(HS_ARCHIVED))
        || (has(HS_LOST) && !has(HS_ARCHIVED));
    if is_inconsistent {
        Err(Errno::EINVAL)
    } else {
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::new_state;
    use wire::{Errno, HS_ARCHIVED, HS_DIRTY, HS_EXISTS, HS_NORELEASE, HSS_SETMASK, HsmAttrs, HsmStateSet};

    fn set(flags: u32) -> HsmStateSet {
        HsmStateSet {
            hss_valid: HSS_SETMASK,
            hss_setmask: flags.into(),
            ..HsmStateSet::default()
        }
    }

    #[test]
    fn inconsistent_states_unknown_flags_and_flags_of_administrators_are_errors() {
        let none = HsmAttrs::default();
        assert_eq!(new_state(none, &set(HS_DIRTY), true), Err(Errno::EINVAL));
        assert_eq!(new_state(none, &set(HS_EXISTS), false), Err(Errno::EPERM));
        assert_eq!(new_state(none, &set(1 << 20), true), Err(Errno::EINVAL));
        let flags = |old, new| new_state(old, &set(new), true).map(|s| s.hsm_flags);
        assert_eq!(flags(none, HS_NORELEASE), Ok(HS_NORELEASE));
        let archived = HsmAttrs {
            hsm_flags: HS_EXISTS | HS_ARCHIVED,
            ..none
        };
        assert_eq!(flags(archived, HS_DIRTY), Ok(HS_EXISTS | HS_ARCHIVED | HS_DIRTY));
    }
}
