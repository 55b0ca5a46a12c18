-- compatible_from: 1
-- The image of a revision by digest or id, once it was fetched: whatever its tag means later, this is what serves.

ALTER TABLE revisions ADD COLUMN image_pin text;
