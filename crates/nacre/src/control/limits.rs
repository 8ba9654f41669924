//! Limits on connections to the control socket. The owners (root and the user of this process) have
//! a limit of their own, so that other users cannot use up their connections.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of open connections of the owners together.
const OWNERS_MAX: usize = 128;
/// Maximum number of open connections of all other users together.
const OTHERS_MAX: usize = 64;
/// Maximum number of open connections of one other user.
const USER_MAX: usize = 8;

/// Counts of open connections.
#[derive(Debug, Default)]
pub(super) struct Limits {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    owners: usize,
    /// By user id.
    others: HashMap<u32, usize>,
}

/// An open connection. Dropping the permit frees its place under the limits.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limits: Arc<Limits>,
    /// The user id; `None` for an owner.
    uid: Option<u32>,
}

impl Limits {
    /// Counts a connection of an owner (`None`) or of another user.
    ///
    /// # Errors
    /// A message with the exhausted limit.
    pub(super) fn admit(self: &Arc<Self>, uid: Option<u32>) -> Result<ConnectionPermit, String> {
        let mut counts = self.counts.lock();
        match uid {
            None if counts.owners >= OWNERS_MAX => {
                return Err(format!(
                    "{OWNERS_MAX} commands of root and the owner wait for answers already"
                ));
            }
            None => counts.owners += 1,
            Some(uid) => {
                if counts.others.values().sum::<usize>() >= OTHERS_MAX {
                    return Err(format!(
                        "{OTHERS_MAX} commands of other users wait for answers already"
                    ));
                }
                let count = counts.others.entry(uid).or_default();
                if *count >= USER_MAX {
                    return Err(format!(
                        "{USER_MAX} commands of user {uid} wait for answers already"
                    ));
                }
                *count += 1;
            }
        }
        Ok(ConnectionPermit {
            limits: self.clone(),
            uid,
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.counts.lock();
        match self.uid {
            None => counts.owners -= 1,
            Some(uid) => {
                if let Some(count) = counts.others.get_mut(&uid) {
                    *count -= 1;
                }
                counts.others.retain(|_, count| *count > 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Limits, OTHERS_MAX, OWNERS_MAX, USER_MAX};
    use std::sync::Arc;

    #[test]
    fn limits_of_other_users_do_not_affect_owners() {
        let limits = Arc::<Limits>::default();
        let one_user: Vec<_> = (0..USER_MAX).map(|_| limits.admit(Some(1000))).collect();
        assert!(one_user.iter().all(Result::is_ok) && limits.admit(Some(1000)).is_err());
        let users = 1001..1001 + (OTHERS_MAX - USER_MAX) as u32;
        let others: Vec<_> = users.map(|uid| limits.admit(Some(uid))).collect();
        assert!(others.iter().all(Result::is_ok) && limits.admit(Some(1)).is_err());
        let owners: Vec<_> = (0..OWNERS_MAX).map(|_| limits.admit(None)).collect();
        assert!(owners.iter().all(Result::is_ok) && limits.admit(None).is_err());
        drop((one_user, others, owners));
        assert!(limits.admit(Some(1000)).is_ok() && limits.admit(None).is_ok());
        assert!(limits.counts.lock().others.is_empty());
    }
}
