//! The metadata target: names, attributes, layouts, FID sequences and their location.
