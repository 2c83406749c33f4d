"""What one site does: recipes, objectives, plans, trainers, and the requests that train, evaluate and measure."""
