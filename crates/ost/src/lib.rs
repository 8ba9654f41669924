//! The object target: objects, precreation, grants, read and write.
