//! Files with data that could not be written back, and the descriptors that reported the loss.
//!
//! After a loss that the program cannot handle (an eviction, a disk error), every descriptor open
//! at that time fails permanently ([`super::descriptors`]). For lack of space, the rule of Linux's
//! `errseq_t` holds: each descriptor reports each loss once, at an fsync. A close returns the error
//! too, but the loss stays unreported, because many programs ignore the result of a close. A
//! descriptor opened later reports a loss that no other descriptor has reported.

use super::descriptors::{Descriptor, Descriptors};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::{Errno, Fid};

/// Largest number of remembered files. At this number, the client forgets the files with reported
/// losses. If there are none, it forgets all losses except the mount's last `FILES_MAX / 2`.
const FILES_MAX: usize = 64 << 10;

/// The losses of a mount.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// The number of the mount's last loss; 0: none so far. A descriptor with this number in its
    /// cursor has nothing to report.
    last: AtomicU64,
    files: Mutex<HashMap<Fid, Loss>>,
    descriptors: Arc<Descriptors>,
}

/// The last loss of a file.
#[derive(Clone, Copy, Debug)]
struct Loss {
    /// The number of this loss in the order of the mount's losses, from 1.
    number: u64,
    error: Errno,
    /// Whether an fsync has reported it.
    reported: bool,
}

/// The number of the last loss that a descriptor has reported or need not report.
#[derive(Debug)]
pub(crate) struct LossCursor(AtomicU64);

impl Losses {
    /// Registers the descriptor of an opened file.
    pub(crate) fn descriptor(&self, file: Fid) -> Descriptor {
        self.descriptors.open(file)
    }

    /// Whether a descriptor of the file has lost data.
    pub(crate) fn has_lost_data(&self, file: Fid) -> bool {
        self.descriptors.has_lost_data(file)
    }

    /// Records a loss of a file's data. Returns the number of descriptors that now fail.
    pub(crate) fn add(&self, file: Fid, error: Errno) -> usize {
        self.record(file, error);
        if matches!(error, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) {
            return 0;
        }
        self.descriptors.fail_descriptors(file)
    }

    fn record(&self, file: Fid, error: Errno) {
        let mut files = self.files.lock();
        let number = self.last.load(Ordering::Relaxed) + 1;
        if files.len() >= FILES_MAX {
            files.retain(|_, loss| !loss.reported);
        }
        if files.len() >= FILES_MAX {
            tracing::error!("data of more than {FILES_MAX} files is lost: fsync will not report all of them");
            files.retain(|_, loss| loss.number + FILES_MAX as u64 / 2 > number);
        }
        let reported = false;
        files.insert(
            file,
            Loss {
                number,
                error,
                reported,
            },
        );
        self.last.store(number, Ordering::Release);
    }

    /// The cursor of a descriptor that is opened now: it need not report earlier losses, except the
    /// file's own if no descriptor has reported it.
    pub(crate) fn cursor(&self, file: Fid) -> LossCursor {
        let last = self.last.load(Ordering::Acquire);
        let unreported = |loss: &&Loss| !loss.reported;
        let number = match last {
            0 => 0,
            _ => self
                .files
                .lock()
                .get(&file)
                .filter(unreported)
                .map_or(last, |loss| loss.number - 1),
        };
        LossCursor(AtomicU64::new(number))
    }

    /// Fails with the error of an unreported loss, which stays unreported.
    pub(crate) fn check(&self, file: Fid, cursor: &LossCursor) -> Result<(), Errno> {
        self.next_error(file, cursor, false)
    }

    /// Fails with the error of an unreported loss, which counts as reported from now on.
    pub(crate) fn report(&self, file: Fid, cursor: &LossCursor) -> Result<(), Errno> {
        self.next_error(file, cursor, true)
    }

    /// Fails with the error of the file's loss after the cursor. `marks_reported`: the loss counts
    /// as reported from now on.
    fn next_error(&self, file: Fid, cursor: &LossCursor, marks_reported: bool) -> Result<(), Errno> {
        let last = self.last.load(Ordering::Acquire);
        if cursor.0.load(Ordering::Acquire) >= last {
            return Ok(());
        }
        let mut files = self.files.lock();
        let seen = cursor.0.load(Ordering::Acquire);
        let Some(loss) = files.get_mut(&file).filter(|loss| loss.number > seen) else {
            cursor.0.fetch_max(last, Ordering::AcqRel);
            return Ok(());
        };
        if marks_reported {
            loss.reported = true;
            cursor.0.fetch_max(loss.number, Ordering::AcqRel);
        }
        Err(loss.error)
    }
}

#[cfg(test)]
mod tests {
    use super::{FILES_MAX, Losses};
    use wire::{Errno, Fid};

    const FILE: Fid = Fid::new(0x400, 1, 0);
    const OTHER: Fid = Fid::new(0x400, 2, 0);

    #[test]
    fn each_descriptor_reports_a_loss_once() {
        let losses = Losses::default();
        let (one, two, other) = (losses.cursor(FILE), losses.cursor(FILE), losses.cursor(OTHER));
        losses.add(FILE, Errno::EIO);
        assert_eq!(losses.report(OTHER, &other), Ok(()));
        for cursor in [&one, &two] {
            assert_eq!(losses.report(FILE, cursor), Err(Errno::EIO));
            assert_eq!(losses.report(FILE, cursor), Ok(()));
        }
        losses.add(OTHER, Errno::EIO);
        losses.add(FILE, Errno::ENOSPC);
        assert_eq!(losses.report(FILE, &one), Err(Errno::ENOSPC));
        assert_eq!(losses.report(FILE, &one), Ok(()));
        assert_eq!(losses.report(OTHER, &other), Err(Errno::EIO));
    }

    #[test]
    fn descriptors_fail_permanently_except_for_lack_of_space() {
        let losses = Losses::default();
        let descriptor = losses.descriptor(FILE);
        assert_eq!(losses.add(FILE, Errno::ENOSPC), 0);
        assert_eq!(descriptor.check(), Ok(()));
        assert_eq!(losses.add(FILE, Errno::EIO), 1);
        assert_eq!(descriptor.check(), Err(Errno::EIO));
    }

    #[test]
    fn a_check_at_close_leaves_the_error_to_a_later_fsync() {
        let losses = Losses::default();
        let cursor = losses.cursor(FILE);
        losses.add(FILE, Errno::EIO);
        assert_eq!(losses.check(FILE, &cursor), Err(Errno::EIO));
        assert_eq!(losses.check(FILE, &cursor), Err(Errno::EIO));
        assert_eq!(losses.report(FILE, &cursor), Err(Errno::EIO));
        assert_eq!(losses.check(FILE, &cursor), Ok(()));
    }

    #[test]
    fn a_later_descriptor_reports_a_loss_that_no_other_reported() {
        let losses = Losses::default();
        let before = losses.cursor(FILE);
        losses.add(FILE, Errno::EIO);
        let later = losses.cursor(FILE);
        assert_eq!(losses.report(FILE, &later), Err(Errno::EIO));
        let last = losses.cursor(FILE);
        assert_eq!(losses.report(FILE, &last), Ok(()));
        assert_eq!(losses.report(FILE, &before), Err(Errno::EIO));
    }

    #[test]
    fn the_number_of_losses_is_bounded_and_reported_losses_are_forgotten_first() {
        let losses = Losses::default();
        losses.add(OTHER, Errno::EIO);
        let file = |i: usize| Fid::new(0x500, i as u32, 0);
        losses.add(file(0), Errno::EIO);
        let cursor = losses.cursor(file(0));
        assert_eq!(losses.report(file(0), &cursor), Err(Errno::EIO));
        (1..FILES_MAX).for_each(|i| losses.record(file(i), Errno::EIO));
        assert!(!losses.files.lock().contains_key(&file(0)));
        assert_eq!(losses.report(OTHER, &losses.cursor(OTHER)), Err(Errno::EIO));
        (FILES_MAX..2 * FILES_MAX).for_each(|i| losses.record(file(i), Errno::EIO));
        assert!(losses.files.lock().len() <= FILES_MAX);
        let last = file(2 * FILES_MAX - 1);
        assert_eq!(losses.report(last, &losses.cursor(last)), Err(Errno::EIO));
    }
}
