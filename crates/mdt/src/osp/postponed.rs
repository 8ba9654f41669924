//! New objects wait for the end of the MDT's recovery: until then only the clients that recover
//! know which objects their new files have.

use super::Osts;

impl Osts {
    /// Creates no objects until [`Osts::allow_creates`]. Called before the first OST is added.
    pub(crate) fn postpone_creates(&self) {
        self.may_create.send_replace(false);
    }

    /// Creates objects from now on: all files are known.
    pub(crate) fn allow_creates(&self) {
        self.may_create.send_replace(true);
    }

    /// Waits until the MDT may create objects.
    pub(super) async fn wait_may_create(&self) {
        // This struct owns the sender, so the wait does not fail.
        let _ = self.may_create.subscribe().wait_for(|may| *may).await;
    }
}
